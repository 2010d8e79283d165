// Runs the threads of a dispatch on one host thread: each has a stack of its own and runs until it must meet others.
//
// Built with TRACED, every access that the compiler's thread sanitizer would see comes here: it must lie in a bound
// piece of a buffer, and conflict with no other thread that it is not ordered with by a barrier.
#include "runtime.h"

extern "C" void* memset(void*, int, ulong);
extern "C" void* memcpy(void*, const void*, ulong);
extern "C" void* memmove(void*, const void*, ulong);

// Saves the registers that a call keeps and goes on with another stack.
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
extern "C" void emulator_switch(void** save, void* resume);

namespace {

enum State : uint { READY, AT_SIMDGROUP, AT_THREADGROUP, FINISHED };

struct Fiber {
    void* stack;
    EmulatorThread thread;
    uint state;
    // Where it waits, for what, and a digest of the matrix operations before.
    const void* site;
    uint operation;
    ulong history;
    ulong shared_used;
};

struct Simdgroup {
    uint lanes, arrived, finished;
    // Meetings so far: the values of one stay until all have come to the next.
    uint meetings;
    // Simdgroup barriers so far.
    uint barriers;
    alignas(16) char values[2][64 * 16];
};

// Who touched four bytes of threadgroup memory since the last barrier of the threadgroup.
struct SharedCell {
    uint epoch;
    uint writer, writer_barriers;
    uint reader, reader_barriers;
    // Whether threads of several simdgroups, or several of one, have read.
    uint foreign_readers, several_readers;
};

const uint NOBODY = ~0u;
const uint MANY = ~0u;

struct Machine {
    const EmulatorDispatch* dispatch;
    EmulatorReport* report;
    Fiber fibers[MAX_THREADS];
    Simdgroup simdgroups[MAX_THREADS / 32];
    Fiber* current;
    void* scheduler;
    uint arrived, finished;
    // Counts threadgroups and their barriers.
    uint epoch;
    uint serial;
    uint random;
    uint last_binding;
    alignas(64) uchar shared[SHARED_BYTES];
    SharedCell shared_cells[SHARED_BYTES / 4];
};

Machine machine;

void pause() {
    emulator_switch(&machine.current->stack, machine.scheduler);
}

void fault(EmulatorFault kind, uint index, ulong offset, bool is_write) {
    EmulatorReport& r = *machine.report;
    if (r.fault == FAULT_NONE) {
        r.fault = kind;
        r.index = index;
        r.offset = offset;
        r.is_write = is_write;
        r.at_thread = machine.current->thread.thread_index_in_threadgroup;
        for (uint i = 0; i < 3; i++) r.at_threadgroup[i] = machine.current->thread.threadgroup_position_in_grid[i];
    }
}

// A fault that the thread must not go on after: what it was about to do may end the process.
void stop(EmulatorFault kind, uint index, ulong offset, bool is_write) {
    fault(kind, index, offset, is_write);
    machine.current->state = FINISHED;
    pause();
}

void meet_simdgroup(uint number) {
    Simdgroup& s = machine.simdgroups[number];
    if (s.arrived == 0 || s.arrived + s.finished < s.lanes) return;
    Fiber* fibers = machine.fibers + number * machine.dispatch->width;
    const Fiber* first = nullptr;
    for (uint i = 0; i < s.lanes; i++) {
        Fiber& f = fibers[i];
        if (f.state != AT_SIMDGROUP) continue;
        if (first == nullptr) first = &f;
        bool alike = f.site == first->site && f.operation == first->operation && f.history == first->history;
        if (!alike || s.finished > 0) fault(FAULT_DIVERGENT_SIMDGROUP, NOBODY, 0, false);
    }
    for (uint i = 0; i < s.lanes; i++) {
        if (fibers[i].state == AT_SIMDGROUP) fibers[i].state = READY;
    }
    s.arrived = 0;
    s.meetings++;
}

void meet_threadgroup() {
    uint threads = machine.dispatch->threads;
    if (machine.arrived == 0 || machine.arrived + machine.finished < threads) return;
    const void* site = nullptr;
    for (uint i = 0; i < threads; i++) {
        Fiber& f = machine.fibers[i];
        if (f.state != AT_THREADGROUP) continue;
        if (site == nullptr) site = f.site;
        if (f.site != site || machine.finished > 0) fault(FAULT_DIVERGENT_BARRIER, NOBODY, 0, false);
        f.state = READY;
    }
    machine.arrived = 0;
    machine.epoch++;
}

void wait_for_simdgroup(const void* site, uint operation) {
    Fiber& f = *machine.current;
    uint number = f.thread.simdgroup_index_in_threadgroup;
    f.site = site;
    f.operation = operation;
    f.state = AT_SIMDGROUP;
    machine.simdgroups[number].arrived++;
    meet_simdgroup(number);
    if (f.state == AT_SIMDGROUP) pause();
}

void run_fiber() {
    Fiber& f = *machine.current;
    machine.dispatch->entry(&f.thread, machine.dispatch->buffers);
    f.state = FINISHED;
    machine.finished++;
    uint number = f.thread.simdgroup_index_in_threadgroup;
    machine.simdgroups[number].finished++;
    meet_simdgroup(number);
    meet_threadgroup();
    pause();
    __builtin_unreachable();
}

uint next_random(uint below) {
    machine.random = machine.random * 1664525 + 1013904223;
    return (machine.random >> 8) % below;
}

void prepare_threadgroup(uint x, uint y, uint z) {
    const EmulatorDispatch& d = *machine.dispatch;
    uint simdgroups = (d.threads + d.width - 1) / d.width;
    for (uint i = 0; i < simdgroups; i++) {
        Simdgroup& s = machine.simdgroups[i];
        s.lanes = d.threads - i * d.width < d.width ? d.threads - i * d.width : d.width;
        s.arrived = s.finished = s.meetings = s.barriers = 0;
    }
    for (uint i = 0; i < d.threads; i++) {
        Fiber& f = machine.fibers[i];
        f.thread = EmulatorThread{{x, y, z}, {x * d.threads + i, y, z}, {d.threads, 1, 1}, i, i % d.width, i / d.width,
                                  simdgroups, d.width};
        f.state = READY;
        f.site = nullptr;
        f.operation = 0;
        f.history = 0;
        f.shared_used = 0;
        // The stack holds six registers and where to go on; a function starts with it off by eight. Threads start at
        // different places of their pages, so that they do not fall into the same lines of the host's cache.
        ulong* top = (ulong*)(d.stacks + ulong(STACK_BYTES) * (i + 1) - 64 - i % 61 * 64);
        *--top = 0;
        *--top = (ulong)run_fiber;
        for (uint r = 0; r < 6; r++) *--top = 0;
        f.stack = top;
    }
    machine.arrived = machine.finished = 0;
    machine.epoch++;
    // What nobody wrote is no number.
    memset(machine.shared, 0xff, d.shared_limit);
}

void resume(uint i) {
    machine.current = machine.fibers + i;
    emulator_switch(&machine.scheduler, machine.current->stack);
}

// Runs all threads of a threadgroup to their end, or up to a fault.
void run_threadgroup() {
    const EmulatorDispatch& d = *machine.dispatch;
    static uint order[MAX_THREADS];
    for (uint i = 0; i < d.threads; i++) order[i] = d.order == ORDER_BACKWARD ? d.threads - 1 - i : i;
    while (machine.report->fault == FAULT_NONE) {
        if (d.order == ORDER_RANDOM) {
            for (uint i = d.threads; i > 1; i--) {
                uint j = next_random(i), t = order[j];
                order[j] = order[i - 1];
                order[i - 1] = t;
            }
        }
        bool ran = false;
        for (uint i = 0; i < d.threads && machine.report->fault == FAULT_NONE; i++) {
            if (machine.fibers[order[i]].state != READY) continue;
            ran = true;
            resume(order[i]);
        }
        if (machine.finished == d.threads) return;
        if (!ran) {
            machine.current = machine.fibers;
            fault(FAULT_STUCK, NOBODY, 0, false);
        }
    }
}

}  // namespace

extern "C" {

uint emulator_lane() {
    return machine.current->thread.thread_index_in_simdgroup;
}

uint emulator_width() {
    return machine.dispatch->width;
}

void* emulator_shared(ulong bytes) {
    Fiber& f = *machine.current;
    ulong at = f.shared_used;
    f.shared_used = (at + bytes + 15) / 16 * 16;
    if (f.shared_used > machine.dispatch->shared_limit) stop(FAULT_SHARED_LIMIT, NOBODY, f.shared_used, false);
    return machine.shared + at;
}

void emulator_threadgroup_barrier() {
    Fiber& f = *machine.current;
    f.site = __builtin_return_address(0);
    f.state = AT_THREADGROUP;
    machine.arrived++;
    meet_threadgroup();
    if (f.state == AT_THREADGROUP) pause();
}

void emulator_simdgroup_barrier() {
    Simdgroup& s = machine.simdgroups[machine.current->thread.simdgroup_index_in_threadgroup];
    uint meetings = s.meetings;
    wait_for_simdgroup(__builtin_return_address(0), 0);
    // The first lane to go on counts the barrier for all.
    if (s.barriers <= meetings) s.barriers = meetings + 1;
}

const char* emulator_exchange(const void* value, ulong bytes, uint operation) {
    Fiber& f = *machine.current;
    Simdgroup& s = machine.simdgroups[f.thread.simdgroup_index_in_threadgroup];
    char* values = s.values[s.meetings % 2];
    memcpy(values + 16 * f.thread.thread_index_in_simdgroup, value, bytes);
    wait_for_simdgroup(__builtin_return_address(0), operation);
    return values;
}

void emulator_matrix_operation(uint operation) {
    machine.current->history = machine.current->history * 31 + operation;
}

// Runs a dispatch; the report says what went wrong first, if anything did.
void emulator_run(const EmulatorDispatch* dispatch, EmulatorReport* report) {
    machine.dispatch = dispatch;
    machine.report = report;
    machine.random = dispatch->seed;
    machine.last_binding = 0;
    report->fault = FAULT_NONE;
    const uint* grid = dispatch->grid;
    uint count = grid[0] * grid[1] * grid[2];
    for (uint n = 0; n < count && report->fault == FAULT_NONE; n++) {
        uint i = dispatch->order == ORDER_BACKWARD ? count - 1 - n : n;
        machine.serial = dispatch->first_serial + i;
        prepare_threadgroup(i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]);
        run_threadgroup();
    }
}

}  // extern "C"

#ifdef TRACED

extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

namespace {

// Whether the access of a thread conflicts with one that no simdgroup barrier orders before it.
bool unordered(uint other, uint barriers) {
    const EmulatorThread& me = machine.current->thread;
    if (other == NOBODY || other == me.thread_index_in_threadgroup) return false;
    bool same_simdgroup = other / machine.dispatch->width == me.simdgroup_index_in_threadgroup;
    return !same_simdgroup || barriers == machine.simdgroups[me.simdgroup_index_in_threadgroup].barriers;
}

void touch_shared(ulong offset, uint bytes, bool is_write) {
    const EmulatorThread& me = machine.current->thread;
    uint barriers = machine.simdgroups[me.simdgroup_index_in_threadgroup].barriers;
    if (offset + bytes > machine.current->shared_used) stop(FAULT_OUTSIDE, NOBODY, offset, is_write);
    for (ulong c = offset / 4; c <= (offset + bytes - 1) / 4; c++) {
        SharedCell& cell = machine.shared_cells[c];
        if (cell.epoch != machine.epoch) cell = SharedCell{machine.epoch, NOBODY, 0, NOBODY, 0, 0, 0};
        bool race = unordered(cell.writer, cell.writer_barriers);
        if (is_write) {
            race |= cell.foreign_readers != 0 || unordered(cell.reader, cell.reader_barriers);
            race |= cell.several_readers != 0 && cell.reader_barriers == barriers;
        }
        if (race) fault(FAULT_THREADS_RACE, NOBODY, offset, is_write);
        if (is_write) {
            cell.writer = me.thread_index_in_threadgroup;
            cell.writer_barriers = barriers;
        } else {
            if (cell.reader != NOBODY && cell.reader != me.thread_index_in_threadgroup) {
                bool foreign = cell.reader / machine.dispatch->width != me.simdgroup_index_in_threadgroup;
                if (foreign) cell.foreign_readers = 1;
                cell.several_readers = !foreign && cell.reader_barriers == barriers;
            }
            cell.reader = me.thread_index_in_threadgroup;
            cell.reader_barriers = barriers;
        }
    }
}

void touch_cells(const EmulatorBinding& b, ulong offset, uint bytes, bool is_write) {
    const EmulatorDispatch& d = *machine.dispatch;
    for (ulong c = offset / 2; c <= (offset + bytes - 1) / 2; c++) {
        EmulatorCell& cell = b.cells[c];
        if (cell.interval != d.interval) cell = EmulatorCell{d.interval, 0, 0};
        uint other = cell.writer != 0 && cell.writer != machine.serial ? cell.writer : 0;
        if (is_write && cell.reader != 0 && cell.reader != machine.serial) other = cell.reader;
        if (other != 0) {
            uint count = d.grid[0] * d.grid[1] * d.grid[2];
            bool same_dispatch = other == MANY || (other >= d.first_serial && other - d.first_serial < count);
            fault(same_dispatch ? FAULT_THREADGROUPS_RACE : FAULT_NO_BARRIER, b.index, offset, is_write);
            return;
        }
        if (is_write) cell.writer = machine.serial;
        else cell.reader = cell.reader == 0 || cell.reader == machine.serial ? machine.serial : MANY;
    }
}

void touch(const void* address, uint bytes, bool is_write, bool aligned) {
    const EmulatorDispatch& d = *machine.dispatch;
    const uchar* p = (const uchar*)address;
    if (p >= machine.shared && p < machine.shared + SHARED_BYTES) {
        touch_shared(ulong(p - machine.shared), bytes, is_write);
        return;
    }
    if (p >= d.stacks && p < d.stacks + ulong(STACK_BYTES) * MAX_THREADS) return;
    bool inside = false;
    for (uint i = 0; i < d.binding_count; i++) {
        uint number = machine.last_binding + i;
        if (number >= d.binding_count) number -= d.binding_count;
        const EmulatorBinding& b = d.bindings[number];
        if (p < b.first || p + bytes > b.first + b.bytes) continue;
        inside = true;
        if (is_write && !b.writable) continue;
        machine.last_binding = number;
        ulong offset = ulong(p - b.first);
        if (aligned && ulong(p) % bytes != 0) stop(FAULT_MISALIGNED, b.index, offset, is_write);
        if (b.cells != nullptr) touch_cells(b, offset, bytes, is_write);
        return;
    }
    // Constant tables lie in the library itself.
    if ((const char*)p >= __ehdr_start && (const char*)p < _end && !is_write) return;
    uint nearest = NOBODY;
    ulong offset = 0;
    for (uint i = 0; i < d.binding_count; i++) {
        const EmulatorBinding& b = d.bindings[i];
        if (p >= b.first && (nearest == NOBODY || ulong(p - b.first) < offset)) {
            nearest = b.index;
            offset = ulong(p - b.first);
        }
    }
    stop(inside ? FAULT_READ_ONLY : FAULT_OUTSIDE, nearest, offset, is_write);
}

void touch_range(const void* address, ulong bytes, bool is_write) {
    for (ulong i = 0; i < bytes; i += 16) {
        touch((const uchar*)address + i, uint(bytes - i < 16 ? bytes - i : 16), is_write, false);
    }
}

}  // namespace

extern "C" {

#define TRACE(n)                                                                                                      \
    void __tsan_read##n(void* p) { touch(p, n, false, true); }                                                        \
    void __tsan_write##n(void* p) { touch(p, n, true, true); }                                                        \
    void __tsan_unaligned_read##n(void* p) { touch(p, n, false, false); }                                             \
    void __tsan_unaligned_write##n(void* p) { touch(p, n, true, false); }
TRACE(1)
TRACE(2)
TRACE(4)
TRACE(8)
TRACE(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void* __tsan_memcpy(void* to, const void* from, ulong bytes) {
    touch_range(from, bytes, false);
    touch_range(to, bytes, true);
    return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, ulong bytes) {
    touch_range(from, bytes, false);
    touch_range(to, bytes, true);
    return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, ulong bytes) {
    touch_range(to, bytes, true);
    return memset(to, value, bytes);
}

}  // extern "C"

#endif
