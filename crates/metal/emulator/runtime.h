// What the emulator's Rust side and the runtime share; src/emulator/runtime.rs has the same structs.

typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long ulong;

// The values that a kernel may ask for.
struct EmulatorThread {
    uint threadgroup_position_in_grid[3];
    uint thread_position_in_grid[3];
    uint threads_per_threadgroup[3];
    uint thread_index_in_threadgroup;
    uint thread_index_in_simdgroup;
    uint simdgroup_index_in_threadgroup;
    uint simdgroups_per_threadgroup;
    uint threads_per_simdgroup;
};

// Who touched two bytes of a buffer since the last barrier. Threadgroups are numbered from 1 since then.
struct EmulatorCell {
    uint interval;
    uint writer;
    uint reader;
};

// A piece of a buffer that a dispatch may touch.
struct EmulatorBinding {
    uchar* first;
    ulong bytes;
    // Of the first two bytes; null where no dispatch since the last barrier writes the buffer.
    EmulatorCell* cells;
    uint writable;
    uint index;
};

enum EmulatorFault : uint {
    FAULT_NONE,
    FAULT_OUTSIDE,
    FAULT_READ_ONLY,
    FAULT_MISALIGNED,
    FAULT_NO_BARRIER,
    FAULT_THREADGROUPS_RACE,
    FAULT_THREADS_RACE,
    FAULT_SHARED_LIMIT,
    FAULT_DIVERGENT_SIMDGROUP,
    FAULT_DIVERGENT_BARRIER,
    FAULT_STUCK,
};

struct EmulatorReport {
    uint fault;
    // Binding that was touched, or ~0.
    uint index;
    // Byte in it.
    ulong offset;
    uint is_write;
    uint at_thread;
    uint at_threadgroup[3];
};

enum EmulatorOrder : uint { ORDER_FORWARD, ORDER_BACKWARD, ORDER_RANDOM };

typedef void (*EmulatorEntry)(const EmulatorThread* thread, uchar* const* buffers);

struct EmulatorDispatch {
    EmulatorEntry entry;
    uchar* const* buffers;
    const EmulatorBinding* bindings;
    uint binding_count;
    uint grid[3];
    uint threads;
    uint width;
    uint order;
    uint seed;
    uint shared_limit;
    // Number of the interval between barriers, and of the first threadgroup in it.
    uint interval;
    uint first_serial;
    // Stacks of threads, STACK_BYTES each.
    uchar* stacks;
};

enum : uint { STACK_BYTES = 64 << 10, MAX_THREADS = 1024, SHARED_BYTES = 64 << 10 };
