"""A CUDA runtime without a GPU, compiled for tests: it answers, allocates and writes down its calls."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

struct location { int type, id; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char written[1 << 20];
static int devices = 2, count_error, error, advice_error, prefetch_error, live, set_devices;
static int attributes[256], unknown[256];
static size_t left = (size_t)1 << 40;
static __thread int current;

static int silent;
static int note(const char *text, int code) {
    if (silent) return code;
    pthread_mutex_lock(&lock);
    if (strlen(written) + strlen(text) + 2 < sizeof written) strcat(strcat(written, text), "\n");
    if (code) error = code;
    pthread_mutex_unlock(&lock);
    return code;
}
const char *fake_calls(void) { return written; }
void fake_forget(void) { written[0] = 0; }
void fake_attribute(int which, int value) { attributes[which] = value; unknown[which] = value < 0; }
void fake_devices(int many, int code) { devices = many; count_error = code; }
void fake_left(size_t bytes) { left = bytes; }
void fake_refuse(int advice, int prefetch) { advice_error = advice; prefetch_error = prefetch; }
int fake_error(void) { return error; }
int fake_live(void) { return live; }
int fake_set_devices(void) { return set_devices; }

/* Threads that take and give back as fast as they can, without Python between. */
struct hammer {
    void *(*take)(ssize_t, int, void *);
    void (*give)(void *, ssize_t, int, void *);
    int rounds;
};
static void *hammered(void *given) {
    struct hammer *with = given;
    for (int i = 0; i < with->rounds; i++) {
        void *memory = with->take(64 + i % 7, 0, NULL);
        with->give(memory, 64 + i % 7, 0, NULL);
    }
    return NULL;
}
void fake_hammer(void *take, void *give, int threads, int rounds) {
    pthread_t running[64];
    struct hammer with = {take, give, rounds};
    silent = 1;
    for (int i = 0; i < threads; i++) pthread_create(&running[i], NULL, hammered, &with);
    for (int i = 0; i < threads; i++) pthread_join(running[i], NULL);
    silent = 0;
}

int cudaRuntimeGetVersion(int *version) { *version = VERSION; return 0; }
int cudaGetDeviceCount(int *many) {
    *many = devices;
    if (count_error) error = count_error;
    return count_error;
}
int cudaDeviceGetAttribute(int *value, int which, int device) {
    (void)device;
    if (unknown[which]) return error = 1;
    *value = attributes[which];
    return 0;
}
int cudaGetLastError(void) { int was = error; error = 0; return was; }
int cudaGetDevice(int *device) { *device = current; return 0; }
int cudaSetDevice(int device) { current = device; set_devices++; return 0; }
int cudaDeviceSynchronize(void) { return note("synchronize", 0); }

static int take(const char *how, void **memory, size_t size, unsigned flags) {
    if (silent) return (*memory = malloc(size)) ? 0 : 2;
    char text[99];
    pthread_mutex_lock(&lock);
    int enough = size <= left;
    if (enough) left -= size, live++;
    pthread_mutex_unlock(&lock);
    *memory = enough ? malloc(size < 64 ? 64 : size > (1 << 20) ? 1 << 20 : size) : NULL;
    snprintf(text, sizeof text, "%s %zu flags %u on %d", how, size, flags, current);
    return note(text, enough ? 0 : 2);
}
int cudaMallocManaged(void **memory, size_t size, unsigned flags) {
    return take("managed", memory, size, flags);
}
int cudaMalloc(void **memory, size_t size) { return take("malloc", memory, size, 0); }
int cudaFree(void *memory) {
    free(memory);
    if (silent) return 0;
    pthread_mutex_lock(&lock);
    live--;
    pthread_mutex_unlock(&lock);
    return note("free", 0);
}

static int advised(const char *form, size_t size, int advice, int type, int id) {
    char text[99];
    snprintf(text, sizeof text, "advise %s %zu %d at %d:%d", form, size, advice, type, id);
    return note(text, advice_error);
}
static int fetched(const char *form, size_t size, int type, int id, unsigned flags, void *stream) {
    char text[99];
    const char *words = "prefetch %s %zu to %d:%d flags %u stream %p";
    snprintf(text, sizeof text, words, form, size, type, id, flags, stream);
    return note(text, prefetch_error);
}
#if VERSION >= 13000
int cudaMemAdvise(const void *memory, size_t size, int advice, struct location at) {
    (void)memory;
    return advised("13", size, advice, at.type, at.id);
}
int cudaMemPrefetchAsync(const void *memory, size_t size, struct location at, unsigned flags, void *stream) {
    (void)memory;
    return fetched("13", size, at.type, at.id, flags, stream);
}
#else
int cudaMemAdvise(const void *memory, size_t size, int advice, int device) {
    (void)memory;
    return advised("old", size, advice, 0, device);
}
int cudaMemPrefetchAsync(const void *memory, size_t size, int device, void *stream) {
    (void)memory;
    return fetched("old", size, 0, device, 0, stream);
}
#endif
#if VERSION >= 12020 && VERSION < 13000
int cudaMemAdvise_v2(const void *memory, size_t size, int advice, struct location at) {
    (void)memory;
    return advised("v2", size, advice, at.type, at.id);
}
int cudaMemPrefetchAsync_v2(const void *memory, size_t size, struct location at, unsigned flags,
                            void *stream) {
    (void)memory;
    return fetched("v2", size, at.type, at.id, flags, stream);
}
#endif
"""

INTEGRATED, MANAGED, PAGEABLE, CONCURRENT, HOST_TABLES, FROM_HOST = 18, 83, 88, 89, 100, 101
PLATFORMS = {
    "gh200": {MANAGED: 1, PAGEABLE: 1, CONCURRENT: 1, HOST_TABLES: 1, FROM_HOST: 1},
    "x86 with HMM": {MANAGED: 1, PAGEABLE: 1, CONCURRENT: 1},
    "pcie": {MANAGED: 1, CONCURRENT: 1},
    "wsl": {MANAGED: 1},
}


@cache
def compiled(version: int) -> bytes:
    """The library of one version of CUDA; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler here to build a library that plays CUDA")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "cudart.c", Path(folder) / "cudart.so"
        source.write_text(SOURCE)
        words = [compiler, "-shared", "-fPIC", "-pthread", f"-DVERSION={version}", "-o", str(library)]
        subprocess.run([*words, str(source)], check=True)
        return library.read_bytes()


class Cudart:
    """One of its own, whose counts begin at zero; `path` is what is opened in place of libcudart."""

    def __init__(self, folder: Path, version: int = 12040, platform: str = "pcie") -> None:
        self.path = folder / "libcudart.so.fake"
        self.path.write_bytes(compiled(version))
        self.library: Any = ctypes.CDLL(str(self.path))
        self.library.fake_calls.restype = ctypes.c_char_p
        self.library.fake_left.argtypes = [ctypes.c_size_t]
        self.library.fake_hammer.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        self.become(platform)

    def become(self, platform: str) -> None:
        for which in (INTEGRATED, MANAGED, PAGEABLE, CONCURRENT, HOST_TABLES, FROM_HOST):
            self.library.fake_attribute(which, PLATFORMS[platform].get(which, 0))

    def calls(self) -> list[str]:
        """What was called since the last time that this was asked."""
        text = self.library.fake_calls().decode().splitlines()
        self.library.fake_forget()
        return text
