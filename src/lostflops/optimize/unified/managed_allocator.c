/* Memory for PyTorch that the GPU and the CPU both reach: the callbacks of torch's pluggable allocator.
 *
 * Built with the user's C compiler, without CUDA's headers: libcudart, the one that torch has loaded, is asked
 * for its functions by name. Each kind of memory and each preference is a pair of functions, since torch hands
 * over a size, a device and a stream and nothing else. All of it may be called by several threads at once.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum { MANAGED, SYSTEM, DEVICE, KINDS };
enum { GPU, CPU, PREFERENCES };
enum { DEVICES = 64, HOST = -1 };
enum { PREFERRED_LOCATION = 3, ACCESSED_BY = 5 }; /* cudaMemoryAdvise */
enum { ATTACH_GLOBAL = 1 };
enum { AT_DEVICE = 1, AT_HOST = 2 }; /* cudaMemLocationType */
enum { CUDA_13 = 13000, INVALID_DEVICE = 101 };
#define HUGE_PAGE ((size_t)2 << 20)
#define SMALL_PAGE ((size_t)64 << 10)

/* cudaMemLocation: by value from CUDA 12.2 on in the functions called _v2, in CUDA 13 in all. */
struct location {
    int type, id;
};

static struct {
    int (*malloc_managed)(void **, size_t, unsigned);
    int (*malloc_device)(void **, size_t);
    int (*release)(void *);
    int (*get_device)(int *);
    int (*set_device)(int);
    int (*synchronize)(void);
    int (*last_error)(void);
    int (*version)(int *);
    int (*advise_at)(const void *, size_t, int, struct location);
    int (*advise)(const void *, size_t, int, int);
    int (*prefetch_to)(const void *, size_t, struct location, unsigned, void *);
    int (*prefetch)(const void *, size_t, int, void *);
} cuda;

static struct {
    atomic_llong live, peak, allocations, releases, failures, advice_failures;
    atomic_int last_failure;
} usage[KINDS][PREFERENCES][DEVICES];

static atomic_int said_aloud;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int opened;
static char problem[512];

static void *named(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found && !problem[0]) snprintf(problem, sizeof problem, "it has no %s", name);
    return found;
}

/* 0, or 1 and lostflops_problem() says why. Called before anything else; again it does nothing. */
int lostflops_open(const char *path) {
    pthread_mutex_lock(&opening);
    if (!opened) {
        problem[0] = 0;
        void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* never closed */
        if (!library) {
            const char *said = dlerror();
            snprintf(problem, sizeof problem, "%s", said ? said : "it cannot be loaded");
        } else {
            cuda.malloc_managed = named(library, "cudaMallocManaged");
            cuda.malloc_device = named(library, "cudaMalloc");
            cuda.release = named(library, "cudaFree");
            cuda.get_device = named(library, "cudaGetDevice");
            cuda.set_device = named(library, "cudaSetDevice");
            cuda.synchronize = named(library, "cudaDeviceSynchronize");
            cuda.last_error = named(library, "cudaGetLastError");
            cuda.version = named(library, "cudaRuntimeGetVersion");
            int version = 0;
            if (!problem[0]) cuda.version(&version);
            cuda.advise_at = dlsym(library, "cudaMemAdvise_v2");
            cuda.prefetch_to = dlsym(library, "cudaMemPrefetchAsync_v2");
            /* CUDA 13 took the old names for the new functions. */
            if (!cuda.advise_at && version >= CUDA_13) cuda.advise_at = named(library, "cudaMemAdvise");
            if (!cuda.prefetch_to && version >= CUDA_13)
                cuda.prefetch_to = named(library, "cudaMemPrefetchAsync");
            if (!cuda.advise_at) cuda.advise = named(library, "cudaMemAdvise");
            if (!cuda.prefetch_to) cuda.prefetch = named(library, "cudaMemPrefetchAsync");
            opened = !problem[0];
        }
    }
    int failed = !opened;
    pthread_mutex_unlock(&opening);
    return failed;
}

const char *lostflops_problem(void) { return problem; }

/* 1 when advice and prefetch take a struct for the place, 0 when they take a number. */
int lostflops_takes_location(void) { return cuda.advise_at != NULL; }

/* An error is told to the caller; the next launch of somebody else must not find it. */
static int told(int code) {
    if (code) cuda.last_error();
    return code;
}

static struct location at(int device) {
    struct location place = {device == HOST ? AT_HOST : AT_DEVICE, device == HOST ? 0 : device};
    return place;
}

/* cudaError. `device` -1 is the host. */
int lostflops_advise(void *memory, size_t size, int advice, int device) {
    if (cuda.advise_at) return told(cuda.advise_at(memory, size, advice, at(device)));
    return told(cuda.advise(memory, size, advice, device));
}

int lostflops_prefetch(void *memory, size_t size, int device, void *stream) {
    if (cuda.prefetch_to) return told(cuda.prefetch_to(memory, size, at(device), 0, stream));
    return told(cuda.prefetch(memory, size, device, stream));
}

/* Makes `device` current; returns the one that was, for `leave`. */
static int enter(int device) {
    int before = device;
    if (cuda.get_device(&before) || before == device) return device;
    return cuda.set_device(device) ? device : before;
}

static void leave(int device, int before) {
    if (before != device) cuda.set_device(before);
}

static int take(int kind, size_t size, void **memory) {
    if (kind == MANAGED) return cuda.malloc_managed(memory, size, ATTACH_GLOBAL);
    if (kind == DEVICE) return cuda.malloc_device(memory, size);
    return posix_memalign(memory, size < HUGE_PAGE ? SMALL_PAGE : HUGE_PAGE, size) ? 2 : 0;
}

/* NULL when there is no memory: torch frees what it caches, tries again, and raises OutOfMemoryError. */
static void *allocate(int kind, int preference, ssize_t size, int device) {
    if (size <= 0 || device < 0 || device >= DEVICES || !opened) return NULL;
    void *memory = NULL;
    int before = enter(device);
    int code = told(take(kind, (size_t)size, &memory));
    if (code || !memory) {
        leave(device, before);
        atomic_fetch_add(&usage[kind][preference][device].failures, 1);
        atomic_store(&usage[kind][preference][device].last_failure, code);
        if (atomic_load(&said_aloud))
            fprintf(stderr, "lostflops: no unified memory for %lld bytes on GPU %d (CUDA error %d)\n",
                    (long long)size, device, code);
        return NULL;
    }
    if (kind != DEVICE) {
        int home = preference == GPU ? device : HOST, other = preference == GPU ? HOST : device;
        int refused = lostflops_advise(memory, (size_t)size, PREFERRED_LOCATION, home);
        if (!refused) refused = lostflops_advise(memory, (size_t)size, ACCESSED_BY, other);
        if (refused) {
            atomic_fetch_add(&usage[kind][preference][device].advice_failures, 1);
            atomic_store(&usage[kind][preference][device].last_failure, refused);
        }
    }
    leave(device, before);
    long long live = atomic_fetch_add(&usage[kind][preference][device].live, size) + size;
    long long peak = atomic_load(&usage[kind][preference][device].peak);
    while (peak < live &&
           !atomic_compare_exchange_weak(&usage[kind][preference][device].peak, &peak, live)) {
    }
    atomic_fetch_add(&usage[kind][preference][device].allocations, 1);
    return memory;
}

static void deallocate(int kind, int preference, void *memory, ssize_t size, int device) {
    if (!memory || device < 0 || device >= DEVICES || !opened) return;
    int before = enter(device);
    if (kind == SYSTEM) {
        /* cudaFree waits for the kernels that use the memory; free does not. */
        told(cuda.synchronize());
        free(memory);
    } else {
        told(cuda.release(memory)); /* fails at exit, when CUDA is gone before torch */
    }
    leave(device, before);
    atomic_fetch_sub(&usage[kind][preference][device].live, size);
    atomic_fetch_add(&usage[kind][preference][device].releases, 1);
}

#define PAIR(name, kind, preference)                                                                   \
    void *lostflops_##name##_alloc(ssize_t size, int device, void *stream) {                           \
        (void)stream;                                                                                  \
        return allocate(kind, preference, size, device);                                               \
    }                                                                                                  \
    void lostflops_##name##_free(void *memory, ssize_t size, int device, void *stream) {               \
        (void)stream;                                                                                  \
        deallocate(kind, preference, memory, size, device);                                            \
    }

PAIR(managed_gpu, MANAGED, GPU)
PAIR(managed_cpu, MANAGED, CPU)
PAIR(system_gpu, SYSTEM, GPU)
PAIR(system_cpu, SYSTEM, CPU)
PAIR(device_gpu, DEVICE, GPU)

/* Seven numbers: bytes now, most bytes, allocations, releases, failures, refused advice, last cudaError. */
int lostflops_usage(int kind, int preference, int device, long long *out) {
    if (kind < 0 || kind >= KINDS || preference < 0 || preference >= PREFERENCES || device < 0 ||
        device >= DEVICES)
        return INVALID_DEVICE;
    out[0] = atomic_load(&usage[kind][preference][device].live);
    out[1] = atomic_load(&usage[kind][preference][device].peak);
    out[2] = atomic_load(&usage[kind][preference][device].allocations);
    out[3] = atomic_load(&usage[kind][preference][device].releases);
    out[4] = atomic_load(&usage[kind][preference][device].failures);
    out[5] = atomic_load(&usage[kind][preference][device].advice_failures);
    out[6] = atomic_load(&usage[kind][preference][device].last_failure);
    return 0;
}

void lostflops_say_failures(void) { atomic_store(&said_aloud, 1); }

/* From here on the most bytes are those of now. */
void lostflops_forget_peak(int kind, int preference, int device) {
    if (kind < 0 || kind >= KINDS || preference < 0 || preference >= PREFERENCES || device < 0 ||
        device >= DEVICES)
        return;
    atomic_store(&usage[kind][preference][device].peak,
                 atomic_load(&usage[kind][preference][device].live));
}
