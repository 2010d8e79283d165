//! State of the machine beside a measurement, independent of both engines: plain reads and the cost of a barrier.
//!
//! One file without dependencies, compiled by compare.py: `rustc -O -C target-cpu=native machine.rs`.
//! `machine THREADS` prints one JSON object. Bandwidths are those of all threads together in GB/s (10^9), times in
//! microseconds.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::{black_box, spin_loop};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// Bytes read: more than any cache holds.
const READ: usize = 128 << 20;
const READS: usize = 5;
/// About this many barriers, or this long: an overloaded machine takes milliseconds for each.
const BARRIERS: usize = 2000;
const BATCH: usize = 100;
const BARRIER_TIME: Duration = Duration::from_millis(60);
/// Longest spin before the processor is given away, since another thread may need it to arrive.
const SPINS: usize = 20_000;
const HUGE_PAGE: usize = 2 << 20;

/// Memory in pages of one kind.
struct Pages {
    start: *mut u8,
    layout: Layout,
}

impl Pages {
    fn new(huge: bool) -> Pages {
        let layout = Layout::from_size_align(READ, HUGE_PAGE).expect("a power of two");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        advise(start, huge);
        // Untouched pages are all the same one, so they are written first.
        // SAFETY: the allocation has this size.
        unsafe { start.write_bytes(1, READ) };
        Pages { start, layout }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size, and written.
        unsafe { std::slice::from_raw_parts(self.start, READ) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

#[cfg(target_os = "linux")]
fn advise(start: *mut u8, huge: bool) {
    unsafe extern "C" {
        fn madvise(start: *mut u8, length: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    const MADV_NOHUGEPAGE: i32 = 15;
    // SAFETY: advice on memory of this program; a refusal leaves ordinary pages.
    unsafe { madvise(start, READ, if huge { MADV_HUGEPAGE } else { MADV_NOHUGEPAGE }) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_start: *mut u8, _huge: bool) {}

fn sum(bytes: &[u8]) -> [u64; 16] {
    let mut sums = [0u64; 16];
    for line in bytes.as_chunks::<128>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum ^= u64::from_ne_bytes(*word);
        }
    }
    sums
}

/// Median GB/s of reading all bytes, each thread its part.
fn read(threads: usize, huge: bool) -> f64 {
    let pages = Pages::new(huge);
    let bytes = pages.bytes();
    let part = READ / threads / 128 * 128;
    let gate = Barrier::new(threads);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let pass = |index: usize| {
            gate.wait();
            black_box(sum(&bytes[index * part..][..part]));
            gate.wait();
        };
        for index in 1..threads {
            scope.spawn(move || (0..READS).for_each(|_| pass(index)));
        }
        for _ in 0..READS {
            let start = Instant::now();
            pass(0);
            times.push(start.elapsed().as_secs_f64());
        }
    });
    (part * threads) as f64 / quantile(&mut times, 0.5) / 1e9
}

/// A barrier that spins, as engines have between the steps of a model.
struct Spin {
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
}

impl Spin {
    fn wait(&self) {
        let round = self.round.load(Acquire);
        if self.arrived.fetch_add(1, AcqRel) + 1 == self.threads {
            self.arrived.store(0, Relaxed);
            self.round.store(round + 1, Release);
            return;
        }
        let mut spins = 0;
        while self.round.load(Acquire) == round {
            spins += 1;
            if spins % SPINS == 0 { std::thread::yield_now() } else { spin_loop() }
        }
    }
}

/// Microseconds of rounds of a barrier by all threads.
fn barriers(threads: usize, wait: impl Fn() + Sync) -> Vec<f64> {
    let wait = &wait;
    let begin = Instant::now();
    let mut times = Vec::new();
    // All threads must agree how many rounds there are, so the time is looked at only between batches.
    while times.len() < BARRIERS && begin.elapsed() < BARRIER_TIME {
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(move || (0..BATCH).for_each(|_| wait()));
            }
            for round in 0..BATCH {
                let start = Instant::now();
                wait();
                // The first rounds wait for threads to start.
                if round >= BATCH / 10 {
                    times.push(start.elapsed().as_secs_f64() * 1e6);
                }
            }
        });
    }
    times
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).filter(|n| *n > 0);
    let Some(threads) = threads else {
        eprintln!("usage: machine THREADS");
        std::process::exit(2);
    };
    let (plain, huge) = (read(threads, false), read(threads, true));
    let spin = Spin { threads, arrived: AtomicUsize::new(0), round: AtomicUsize::new(0) };
    let mut spinning = barriers(threads, || spin.wait());
    let gate = Barrier::new(threads);
    let mut sleeping = barriers(threads, || drop(gate.wait()));
    println!(
        "{{\"threads\": {threads}, \"read_gbs\": {plain:.2}, \"read_huge_gbs\": {huge:.2}, \
         \"barrier_us\": {:.3}, \"barrier_p99_us\": {:.3}, \"wake_us\": {:.3}}}",
        quantile(&mut spinning, 0.5),
        quantile(&mut spinning, 0.99),
        quantile(&mut sleeping, 0.5),
    );
}
