//! Random damage with every allocation counted: no panic, and memory in proportion to the file.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Folder, Raw, golden, sample, visit};
use wootz_gguf::{Model, Writer};
use wootz_quant::WeightType;

/// Counts what the current thread allocates; tests run on threads of their own.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn count(freed: usize, allocated: usize) {
    let live = LIVE.get() + allocated as isize - freed as isize;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
    LARGEST.set(LARGEST.get().max(allocated));
}

// SAFETY: every call goes to the system's allocator unchanged; the counters are plain cells.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // A moving realloc has both for a moment.
        count(0, size);
        count(layout.size(), 0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` leaves, the most bytes it held beyond what was there before, and its largest allocation.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    LARGEST.set(0);
    let result = work();
    (result, (PEAK.get() - before) as usize, LARGEST.get())
}

/// Opening allocates at most this for the index, beside the file itself, and for one message.
fn allowed(file: usize) -> usize {
    2 * file + 4096
}

/// A generator without state worth mentioning (SplitMix64), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    const NUMBERS: [u64; 10] = [0, 1, 8, 9, 0xff, 0xffff_ffff, 1 << 31, 1 << 61, 1 << 63, u64::MAX];
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at + 1),
            1 => {
                let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                let width = [4, 8][random.below(2)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            2 => {
                let piece = bytes[at..(at + random.below(40)).min(bytes.len())].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            3 => bytes[at] = bytes[at].wrapping_add(1),
            4 => bytes[at] = random.next() as u8,
            _ => bytes[at] ^= 1 << random.below(8),
        }
    }
}

/// Many tensors of few bytes, the worst case for the directory's share of memory.
fn many_tensors() -> Vec<u8> {
    let raw = Raw::new(3, 40, 1).entry_u32("general.alignment", 8);
    (0..40)
        .fold(raw, |raw, number| raw.tensor(&number.to_string(), &[], 0, number * 8))
        .pad(8)
        .bytes(&[9; 320])
        .0
}

fn fuzz(file: &[u8], rounds: usize, seed: u64) {
    let mut random = Random(seed);
    let [mut sound, mut refused] = [0, 0];
    for round in 0..rounds {
        let mut bytes = file.to_vec();
        damage(&mut bytes, &mut random);
        let size = bytes.len();
        let (model, peak, largest) = measured(|| Model::from_bytes(bytes));
        assert!(peak <= allowed(size), "round {round}: {peak} bytes for a file of {size}");
        assert!(largest <= size + 4096, "round {round}: {largest} bytes at once for a file of {size}");
        match model {
            Ok(model) => {
                sound += 1;
                visit(&model);
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 600, "{error}");
            }
        }
    }
    // Both must happen, or the damage is too much or too little to find anything.
    assert!(sound > rounds / 50 && refused > rounds / 50, "{sound} sound, {refused} refused");
}

#[test]
fn damaged_samples_never_panic() {
    fuzz(&sample(), 150_000, 1);
}

#[test]
fn damaged_directories_never_panic() {
    fuzz(&many_tensors(), 40_000, 2);
}

#[test]
fn damaged_golden_files_never_panic() {
    fuzz(&std::fs::read(golden("everything.gguf")).unwrap(), 20_000, 3);
}

/// Every byte of the header in turn, in every one of its bits.
#[test]
fn every_bit_of_the_sample_may_flip() {
    let file = sample();
    for bit in 0..8 * file.len() {
        let mut bytes = file.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let size = bytes.len();
        let (model, peak, _) = measured(|| Model::from_bytes(bytes));
        assert!(peak <= allowed(size), "bit {bit}: {peak} bytes for a file of {size}");
        if let Ok(model) = model {
            visit(&model);
        }
    }
}

/// A large vocabulary takes its bytes in the file and four bytes a token, in a handful of allocations.
#[test]
fn a_vocabulary_is_held_once() {
    let tokens: Vec<String> = (0..256_000).map(|id| format!("token-{id}")).collect();
    let mut writer = Writer::new();
    writer.meta.set("tokenizer.ggml.tokens", &tokens).unwrap();
    // Weights behind the header, so that the reader may read too far ahead.
    let weights = 4 << 20;
    writer.tensor("weights", &[weights], WeightType::I8, vec![0; weights]).unwrap();
    let folder = Folder::new("vocabulary");
    let path = folder.join("vocabulary.gguf");
    writer.write_file(&path).unwrap();
    let size = std::fs::metadata(&path).unwrap().len() as usize;

    let before = LIVE.get();
    let (model, peak, largest) = measured(|| Model::open(&path).unwrap());
    let held = (LIVE.get() - before) as usize;
    let header = size - weights;
    assert!(
        held < header + header / 8 + 4 * tokens.len() + 4096,
        "{held} bytes held for {header} in the file"
    );
    assert!(peak < 3 * header, "{peak} bytes at the peak for {header} in the file");
    assert!(largest <= header + header / 2, "{largest} bytes at once for {header} in the file");

    let strings = model.meta().strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(strings.len(), tokens.len());
    let (_, walked, _) = measured(|| {
        for (id, (text, token)) in strings.iter().zip(&tokens).enumerate() {
            assert_eq!(text.as_bytes(), token.as_bytes());
            assert_eq!(strings.get(id), Some(text));
        }
    });
    assert_eq!(walked, 0, "looking at tokens allocates nothing");
}

/// Metadata alone costs no more when the weights are large, and nothing is mapped or read of them.
#[test]
fn opening_does_not_read_the_weights() {
    let folder = Folder::new("weights");
    let path = folder.join("weights.gguf");
    std::fs::write(&path, Raw::new(3, 1, 0).tensor("w", &[1 << 28], 0, 0).pad(32).0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((1 << 30) + 96).unwrap();
    let (model, peak, _) = measured(|| Model::open(&path).unwrap());
    assert!(peak < 140_000, "{peak} bytes");
    assert_eq!(model.data_bytes(), 1 << 30);
    let mut last = [1; 4];
    model.read_tensor_at(model.tensor("w").unwrap(), (1 << 30) - 4, &mut last).unwrap();
    assert_eq!(last, [0; 4]);
}
