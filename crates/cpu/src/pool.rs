//! Fork-join pool: the caller is worker 0 and waits only for the workers that took part.
//!
//! Every worker has one slot, a small state machine on its own cache line. A fork writes `READY` into all
//! slots; a worker that sees it takes the slot (`RUNNING`). When the caller has done its own share it takes
//! back every slot that is still `READY` and does that share itself, so a worker without a core delays nobody.
//! Idle workers spin for a moment, then yield, then sleep.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use wootz_graph::Threads;

/// Rounds of the spin loop before a waiting thread yields its core: some ten microseconds.
const SPINS: u32 = 4_000;
/// Time without work after which a worker sleeps.
const IDLE: Duration = Duration::from_millis(3);

const EMPTY: u32 = 0;
const READY: u32 = 1;
const RUNNING: u32 = 2;
const ASLEEP: u32 = 3;
const STOP: u32 = 4;

/// The share of a parallel region that one call of the task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Number of this share, below `count`.
    pub index: usize,
    /// Number of shares.
    pub count: usize,
}

impl Worker {
    /// This worker's contiguous part of `0..total`; the parts differ by at most one element.
    pub fn part(self, total: usize) -> Range<usize> {
        let (each, rest) = (total / self.count, total % self.count);
        let start = self.index * each + self.index.min(rest);
        start..start + each + usize::from(self.index < rest)
    }
}

type Task<'a> = dyn Fn(Worker) + Sync + 'a;

#[repr(align(128))]
struct Slot(AtomicU32);

struct Shared {
    slots: Vec<Slot>,
    /// The task of the running region; written while no slot is `READY` or `RUNNING`.
    task: UnsafeCell<Option<*const Task<'static>>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `task` is written by the one caller that holds `Pool::busy`, before it releases a slot as `READY`, and
// read only by workers that have acquired that slot; the pointee is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `task` is only an address; see above for its use.
unsafe impl Send for Shared {}

/// A pool of threads for regions that last from microseconds to seconds.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    wakers: Vec<Thread>,
    busy: AtomicBool,
}

impl Pool {
    /// A pool of `count` workers, the caller of [`run`](Pool::run) included; 0 counts as 1.
    ///
    /// # Errors
    /// The error of the operating system where a thread cannot be started.
    pub fn new(count: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            slots: (1..count).map(|_| Slot(AtomicU32::new(EMPTY))).collect(),
            task: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, threads: Vec::new(), wakers: Vec::new(), busy: AtomicBool::new(false) };
        for index in 1..count {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("wootz-{index}"))
                .spawn(move || work(&shared, Worker { index, count }))?;
            pool.wakers.push(thread.thread().clone());
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Number of workers, the caller included.
    pub fn workers(&self) -> usize {
        self.shared.slots.len() + 1
    }

    /// Calls `task` once for each worker index, in parallel where threads are free, and returns when all are done.
    ///
    /// One thread may do several shares one after the other, so a task must not wait for another share.
    /// A call from inside a task, or while another thread uses the pool, does all shares on the calling thread.
    ///
    /// # Panics
    /// With the payload of the first task that panicked, after all shares have ended; the pool stays usable.
    pub fn run(&self, task: &Task<'_>) {
        let count = self.workers();
        if count == 1 || self.busy.swap(true, Ordering::Acquire) {
            for index in 0..count {
                task(Worker { index, count });
            }
            return;
        }
        // SAFETY: only the lifetime changes. The pointer is used by workers that hold a slot, and this function
        // does not return, nor unwind, before every slot is empty again.
        let erased = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        // SAFETY: `busy` is held and all slots are empty or asleep, so nobody reads the cell.
        unsafe { *self.shared.task.get() = Some(erased) };
        for (slot, waker) in self.shared.slots.iter().zip(&self.wakers) {
            if slot.0.swap(READY, Ordering::AcqRel) == ASLEEP {
                waker.unpark();
            }
        }
        let mut panic = catch_unwind(AssertUnwindSafe(|| task(Worker { index: 0, count }))).err();
        for (slot, index) in self.shared.slots.iter().zip(1..) {
            if slot.0.compare_exchange(READY, EMPTY, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                let own = catch_unwind(AssertUnwindSafe(|| task(Worker { index, count }))).err();
                panic = panic.or(own);
            }
        }
        for slot in &self.shared.slots {
            let mut spins = 0;
            while slot.0.load(Ordering::Acquire) == RUNNING {
                relax(&mut spins);
            }
        }
        let theirs = lock(&self.shared.panic).take();
        self.busy.store(false, Ordering::Release);
        if let Some(payload) = panic.or(theirs) {
            resume_unwind(payload);
        }
    }
}

impl Threads for Pool {
    fn run(&self, task: &(dyn Fn() + Sync)) {
        Pool::run(self, &|_| task());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for slot in &self.shared.slots {
            slot.0.store(STOP, Ordering::Release);
        }
        for waker in &self.wakers {
            waker.unpark();
        }
        for thread in self.threads.drain(..) {
            // A worker catches every panic of a task, so there is nothing to report here.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn relax(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

fn work(shared: &Shared, worker: Worker) {
    let state = &shared.slots[worker.index - 1].0;
    loop {
        match state.load(Ordering::Acquire) {
            READY => {
                if state.compare_exchange(READY, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_err() {
                    continue;
                }
                // SAFETY: the slot was `READY`, so the caller has set the task, and it keeps it alive until this
                // slot leaves `RUNNING`.
                let task = unsafe { (*shared.task.get()).map(|task| &*task) };
                if let Some(task) = task
                    && let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(worker)))
                {
                    lock(&shared.panic).get_or_insert(payload);
                }
                state.store(EMPTY, Ordering::Release);
            }
            STOP => return,
            _ => wait(state),
        }
    }
}

/// Waits until the slot is ready or stopped: spinning, then yielding, then asleep.
fn wait(state: &AtomicU32) {
    let idle = |value: u32| value == EMPTY || value == ASLEEP;
    let mut spins = 0;
    let mut since = None;
    while idle(state.load(Ordering::Acquire)) {
        relax(&mut spins);
        if spins < SPINS {
            continue;
        }
        if since.get_or_insert_with(Instant::now).elapsed() > IDLE {
            if state.compare_exchange(EMPTY, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                while state.load(Ordering::Acquire) == ASLEEP {
                    std::thread::park();
                }
            }
            return;
        }
    }
}

/// Hands out chunks of `0..total` to whoever asks first.
#[derive(Debug)]
pub struct Chunks {
    next: AtomicUsize,
    total: usize,
    chunk: usize,
}

impl Chunks {
    /// Chunks of `chunk` elements (at least 1), the last one shorter.
    pub fn new(total: usize, chunk: usize) -> Chunks {
        Chunks { next: AtomicUsize::new(0), total, chunk: chunk.max(1) }
    }

    /// The next chunk that nobody has taken.
    pub fn take(&self) -> Option<Range<usize>> {
        // The check keeps the counter from wrapping, however often an empty counter is asked.
        if self.next.load(Ordering::Relaxed) >= self.total {
            return None;
        }
        let start = self.next.fetch_add(self.chunk, Ordering::Relaxed);
        (start < self.total).then(|| start..self.total.min(start.saturating_add(self.chunk)))
    }
}

/// Threads to use by default: the physical cores that this process may use.
pub fn default_workers() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    physical_cores().map_or(allowed, |cores| cores.clamp(1, allowed))
}

/// Physical cores of a Linux machine; `None` where the system does not say.
fn physical_cores() -> Option<usize> {
    let mut cores = std::collections::HashSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        if let Ok(siblings) = std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            cores.insert(siblings);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}
