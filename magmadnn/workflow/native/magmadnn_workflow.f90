! Modules of magmadnn workflows in Fortran:
!   integer(c_int) function run(ctx) bind(c, name="run")
!     type(magmadnn_context), intent(in) :: ctx
! which returns 0 when it ended well.
module magmadnn_workflow
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: magmadnn_context, magmadnn_put, magmadnn_get

  type, bind(c) :: magmadnn_context
    integer(c_int32_t) :: version, rank, size, copy, copies, iteration
    integer(c_int32_t) :: comm, argc
    type(c_ptr) :: argv, folder
    type(c_funptr) :: put, get
  end type magmadnn_context

  integer(c_int), parameter, public :: magmadnn_float32 = 3, magmadnn_float64 = 4
  integer(c_int), parameter, public :: magmadnn_try = 0, magmadnn_wait = 1, magmadnn_read = 2

  abstract interface
    integer(c_int) function put_function(tag, data, count, dtype) bind(c)
      import :: c_int, c_int64_t, c_ptr, c_char
      character(kind=c_char), intent(in) :: tag(*)
      type(c_ptr), value :: data
      integer(c_int64_t), value :: count
      integer(c_int), value :: dtype
    end function put_function
    integer(c_int64_t) function get_function(tag, data, most, dtype, flags) bind(c)
      import :: c_int, c_int64_t, c_ptr, c_char
      character(kind=c_char), intent(in) :: tag(*)
      type(c_ptr), value :: data
      integer(c_int64_t), value :: most
      integer(c_int), value :: dtype, flags
    end function get_function
  end interface

contains

  ! Put a vector of double precision under a tag; 0, or -1 where that failed.
  integer(c_int) function magmadnn_put(ctx, tag, values) result(code)
    type(magmadnn_context), intent(in) :: ctx
    character(len=*), intent(in) :: tag
    real(c_double), intent(in), target, contiguous :: values(:)
    procedure(put_function), pointer :: put
    call c_f_procpointer(ctx%put, put)
    code = put(tag // c_null_char, c_loc(values), size(values, kind=c_int64_t), magmadnn_float64)
  end function magmadnn_put

  ! Get a vector of double precision: how many elements came, -1: it failed, -2: nothing is there.
  integer(c_int64_t) function magmadnn_get(ctx, tag, values, flags) result(count)
    type(magmadnn_context), intent(in) :: ctx
    character(len=*), intent(in) :: tag
    real(c_double), intent(out), target, contiguous :: values(:)
    integer(c_int), intent(in) :: flags
    procedure(get_function), pointer :: get
    call c_f_procpointer(ctx%get, get)
    count = get(tag // c_null_char, c_loc(values), size(values, kind=c_int64_t), &
                magmadnn_float64, flags)
  end function magmadnn_get

end module magmadnn_workflow
