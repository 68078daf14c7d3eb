/* Counts calls of malloc, calloc and realloc of the process that it is preloaded into (LD_PRELOAD). */
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static long calls;

static void count(void) { __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED); }

void *malloc(size_t size) { count(); return __libc_malloc(size); }
void *calloc(size_t items, size_t size) { count(); return __libc_calloc(items, size); }
void *realloc(void *block, size_t size) { count(); return __libc_realloc(block, size); }

long allocations(void) { return __atomic_load_n(&calls, __ATOMIC_RELAXED); }
