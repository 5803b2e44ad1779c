/* libnvidia-ml.so.1 of a node with STUB_GPUS cards of one kind, all at their power cap. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Result;
typedef struct { int index; } Card;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

enum { NO_CARD = 2, WRONG_VERSION = 25, POWER_CAP = 4 };
static Card cards[16];

static void say(const char *call) {
    FILE *log = fopen(getenv("STUB_LOG"), "a");
    fprintf(log, "%d nvml %s\n", getpid(), call);
    fclose(log);
}
static int count(void) { return atoi(getenv("STUB_GPUS")); }

Result nvmlInitWithFlags(unsigned flags) { say("init"); return 0; }
Result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Result nvmlInit(void) { return nvmlInitWithFlags(0); } // as torch calls it
Result nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(Result result) { return "an error of the stub"; }
Result nvmlDeviceGetCount_v2(unsigned *found) { *found = count(); return 0; }
Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **card) {
    if (index >= (unsigned)count()) return NO_CARD;
    cards[index].index = index;
    *card = &cards[index];
    return 0;
}
Result nvmlDeviceGetUUID(Card *card, char *text, unsigned size) {
    snprintf(text, size, "GPU-%08d-1111-2222-3333-444444444444", card->index);
    return 0;
}
Result nvmlDeviceGetHandleByUUID(const char *uuid, Card **card) {
    int index = atoi(uuid + 4);
    return nvmlDeviceGetHandleByIndex_v2(index, card);
}
Result nvmlDeviceGetPciInfo_v3(Card *card, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", card->index + 1);
    return 0;
}
Result nvmlDeviceGetMemoryInfo_v2(Card *card, Memory *memory) {
    if (memory->version != (sizeof(Memory) | 2u << 24)) return WRONG_VERSION;
    memory->total = 80ull << 30;
    memory->reserved = 500ull << 20;
    memory->used = 600ull << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return 0;
}
Result nvmlDeviceGetTotalEnergyConsumption(Card *card, unsigned long long *millijoules) {
    *millijoules = 7000000;
    return 0;
}
Result nvmlDeviceGetPowerUsage(Card *card, unsigned *milliwatts) { *milliwatts = 700000; return 0; }
Result nvmlDeviceGetClockInfo(Card *card, int kind, unsigned *megahertz) {
    *megahertz = kind == 1 ? 1755 : 0; /* 1: the multiprocessors' */
    return 0;
}
Result nvmlDeviceGetCurrentClocksThrottleReasons(Card *card, unsigned long long *reasons) {
    *reasons = POWER_CAP;
    return 0;
}
Result nvmlDeviceGetCurrentClocksEventReasons(Card *card, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(card, reasons);
}
