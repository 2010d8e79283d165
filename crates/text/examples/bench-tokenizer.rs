//! Measures building and running a tokenizer: `bench-tokenizer MODEL.gguf [TEXT.txt]`; the text is taken 64 times.

use std::sync::LazyLock;
use std::time::Instant;

use wootz_gguf::Model;
use wootz_text::{Segment, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: bench-tokenizer MODEL.gguf [TEXT.txt]")?;
    let text = match args.next() {
        Some(file) => std::fs::read(file)?.repeat(64),
        None => "The quick brown fox, aged 42, jumps over 13 lazy dogs.\n".repeat(20_000).into_bytes(),
    };
    let open = best(|| Model::open(&path))?;
    let model = Model::open(&path)?;
    let build = best(|| Tokenizer::from_metadata(model.meta(), None))?;
    let tokenizer = Tokenizer::from_metadata(model.meta(), None)?;
    println!("{} tokens: file {open:.1} ms, tokenizer {build:.1} ms", tokenizer.vocab_size());
    for (name, input) in [
        ("text", text),
        ("equal letters", vec![b'a'; 1 << 20]),
        ("spaces", vec![b' '; 1 << 20]),
        ("line breaks", vec![b'\n'; 1 << 20]),
        ("digits", vec![b'7'; 1 << 20]),
        ("no spaces", (0..1u32 << 20).map(|i| b'a' + (i.wrapping_mul(i) % 23) as u8).collect()),
        ("random bytes", (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
    ] {
        let segment = [Segment::Text(&input)];
        let mut ids = Vec::new();
        let time = best(|| -> Result<(), String> {
            ids = tokenizer.encode(&segment, false);
            Ok(())
        })?;
        let decode = best(|| Ok::<_, String>(tokenizer.decode(&ids, false)))?;
        let rate = input.len() as f64 / 1e3 / time;
        println!(
            "{name:>14}: {:8} bytes, {:8} tokens, encode {time:7.1} ms ({rate:6.1} MB/s), decode {decode:5.1} ms",
            input.len(),
            ids.len()
        );
    }
    Ok(())
}

/// Best of three runs, in milliseconds.
fn best<T, E>(mut run: impl FnMut() -> Result<T, E>) -> Result<f64, E> {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = clock();
        run()?;
        best = best.min(clock() - start);
    }
    Ok(best)
}

/// Milliseconds that this thread ran on a processor where Linux tells, else milliseconds of the wall clock.
fn clock() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let wall = START.elapsed().as_secs_f64() * 1e3;
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat");
    let ran = stat.ok().and_then(|stat| stat.split(' ').next()?.parse::<f64>().ok());
    ran.map_or(wall, |nanoseconds| nanoseconds / 1e6)
}
