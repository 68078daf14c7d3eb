/* Modules of magmadnn workflows in C: int run(const magmadnn_context *ctx), 0 when it ended well. */
#ifndef MAGMADNN_WORKFLOW_H
#define MAGMADNN_WORKFLOW_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of put and get. */
enum {
    MAGMADNN_UINT8 = 0,
    MAGMADNN_INT32 = 1,
    MAGMADNN_INT64 = 2,
    MAGMADNN_FLOAT32 = 3,
    MAGMADNN_FLOAT64 = 4,
    MAGMADNN_COMPLEX64 = 5,
    MAGMADNN_COMPLEX128 = 6
};

/* Flags of get. */
enum { MAGMADNN_TRY = 0, MAGMADNN_WAIT = 1, MAGMADNN_READ = 2 };

typedef struct magmadnn_context {
    int32_t version;          /* 1 */
    int32_t rank, size;       /* of this copy's communicator */
    int32_t copy, copies;     /* number of this copy, and how many there are */
    int32_t iteration;        /* of the group, from 0 */
    int32_t comm;             /* Fortran's handle: MPI_Comm_f2c(ctx->comm) */
    int32_t argc;             /* arguments from the workflow's file */
    const char *const *argv;
    const char *folder;       /* of this run */
    /* Put `count` elements under a tag; 0, or -1 where that failed. `data` may be changed afterwards. */
    int (*put)(const char *tag, const void *data, int64_t count, int dtype);
    /* Get up to `most` elements; how many came, -1 where it failed, -2 where nothing is there (without
       MAGMADNN_WAIT). With MAGMADNN_READ it stays for others. */
    int64_t (*get)(const char *tag, void *data, int64_t most, int dtype, int flags);
} magmadnn_context;

#ifdef __cplusplus
}
#endif
#endif
