//! The fork-join pool under ordinary and hostile use.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use wootz_cpu::pool::{Chunks, Pool, Worker};

/// Runs one region and returns how often each share was done.
fn counts(pool: &Pool) -> Vec<usize> {
    let done: Vec<AtomicUsize> = (0..pool.workers()).map(|_| AtomicUsize::new(0)).collect();
    pool.run(&|w| {
        assert_eq!(w.count, done.len());
        done[w.index].fetch_add(1, Relaxed);
    });
    done.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_share_runs_exactly_once() {
    for n in [1, 2, 3, 8, 33] {
        let pool = Pool::new(n).unwrap();
        for _ in 0..200 {
            assert_eq!(counts(&pool), vec![1; n]);
        }
    }
    assert_eq!(Pool::new(0).unwrap().workers(), 1);
}

#[test]
fn many_small_regions_see_each_others_writes() {
    let pool = Pool::new(2).unwrap();
    let mut values = [0u64; 64];
    for round in 0..20_000u64 {
        let cells: Vec<_> = values.iter_mut().map(std::sync::Mutex::new).collect();
        pool.run(&|w| {
            for i in w.part(64) {
                let mut v = cells[i].lock().unwrap();
                assert_eq!(**v, round);
                **v += 1;
            }
        });
    }
    assert_eq!(values, [20_000; 64]);
}

#[test]
fn sleeping_workers_wake() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(15));
        // Long enough for a sleeping worker to arrive; all shares must be done whoever does them.
        let threads = std::sync::Mutex::new(std::collections::HashSet::new());
        pool.run(&|_| {
            threads.lock().unwrap().insert(std::thread::current().id());
            std::thread::sleep(Duration::from_millis(30));
        });
        assert!(threads.lock().unwrap().len() > 1, "no worker woke within 30 ms");
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    let pool = Pool::new(4).unwrap();
    for bad in 0..4 {
        for _ in 0..50 {
            let others = AtomicUsize::new(0);
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.run(&|w| {
                    if w.index == bad {
                        std::panic::panic_any(format!("share {bad}"));
                    }
                    others.fetch_add(1, Relaxed);
                })
            }));
            assert_eq!(*caught.unwrap_err().downcast::<String>().unwrap(), format!("share {bad}"));
            assert_eq!(others.into_inner(), 3);
        }
    }
    assert_eq!(counts(&pool), vec![1; 4]);
}

#[test]
fn nested_and_concurrent_regions_finish() {
    let pool = Pool::new(4).unwrap();
    let inner = AtomicUsize::new(0);
    pool.run(&|_| {
        pool.run(&|_| {
            inner.fetch_add(1, Relaxed);
        })
    });
    assert_eq!(inner.into_inner(), 16);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..300 {
                    assert_eq!(counts(&pool), vec![1; 4]);
                }
            });
        }
    });
}

#[test]
fn chunks_cover_the_range_once() {
    let pool = Pool::new(3).unwrap();
    for (total, chunk) in [(0, 4), (1, 0), (1000, 7), (5, usize::MAX)] {
        let hits: Vec<AtomicUsize> = (0..total).map(|_| AtomicUsize::new(0)).collect();
        let chunks = Chunks::new(total, chunk);
        pool.run(&|_| {
            while let Some(range) = chunks.take() {
                for hit in &hits[range] {
                    hit.fetch_add(1, Relaxed);
                }
            }
        });
        assert!(hits.iter().all(|hit| hit.load(Relaxed) == 1));
    }
}

#[test]
fn parts_are_balanced_and_complete() {
    for count in 1..9 {
        for total in [0, 1, 7, 64, 1001] {
            let mut next = 0;
            for index in 0..count {
                let part = Worker { index, count }.part(total);
                assert_eq!(part.start, next);
                assert!(part.len().abs_diff(total / count) <= 1);
                next = part.end;
            }
            assert_eq!(next, total);
        }
    }
}

/// Processor time of this process in clock ticks.
#[cfg(target_os = "linux")]
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// In a process of its own, since the other tests of this file burn processor time beside it.
#[cfg(target_os = "linux")]
#[test]
fn an_idle_pool_sleeps() {
    if std::env::var_os("WOOTZ_IDLE_POOL").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "an_idle_pool_sleeps"])
            .env("WOOTZ_IDLE_POOL", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let pool = Pool::new(4).unwrap();
    counts(&pool);
    std::thread::sleep(Duration::from_millis(100));
    let before = cpu_ticks();
    std::thread::sleep(Duration::from_millis(500));
    assert!(cpu_ticks() - before <= 10, "an idle pool used {} ticks in 0.5 s", cpu_ticks() - before);
}
