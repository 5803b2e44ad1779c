/* libcuda.so.1 of a machine whose driver finds no device: it says who called it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NO_DEVICE = 100 };

static int say(const char *call) {
    FILE *log = fopen(getenv("STUB_LOG"), "a");
    fprintf(log, "%d cuda %s\n", getpid(), call);
    fclose(log);
    return NO_DEVICE;
}
static int other(void) { return say("another function"); }

int cuInit(unsigned flags) { return say("cuInit"); }
int cuDeviceGetCount(int *count) { *count = 0; return say("cuDeviceGetCount"); }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetExportTable(const void **table, const void *id) { return NO_DEVICE; }
int cuGetProcAddress_v2(
    const char *name, void **found, int version, unsigned long long flags, int *status
) {
    if (status) *status = 0;
    *found = !strcmp(name, "cuInit") ? (void *)cuInit
        : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
        : !strcmp(name, "cuDeviceGetCount") ? (void *)cuDeviceGetCount
        : !strcmp(name, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2
        : (void *)other;
    return 0;
}
int cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, found, version, flags, 0);
}
