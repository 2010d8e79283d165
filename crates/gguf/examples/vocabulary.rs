//! Measures how long a file with a large vocabulary takes to open.
//!
//! `cargo run --release -p wootz-gguf --example vocabulary [TOKENS]`

use std::time::Instant;

use wootz_gguf::{Model, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokens: u32 = std::env::args().nth(1).map_or(Ok(262_144), |count| count.parse())?;
    let mut writer = Writer::new();
    let names = |prefix: &str| (0..tokens).map(|id| format!("{prefix}{id}")).collect::<Vec<_>>();
    writer
        .meta
        .set("general.architecture", "llama")?
        .set("tokenizer.ggml.tokens", names("token"))?
        .set("tokenizer.ggml.scores", (0..tokens).map(|id| -(id as f32)).collect::<Vec<_>>())?
        .set("tokenizer.ggml.token_type", vec![1i32; tokens as usize])?
        .set("tokenizer.ggml.merges", names("left right"))?;
    let path = std::env::temp_dir().join(format!("wootz-vocabulary-{}.gguf", std::process::id()));
    writer.write_file(&path)?;

    let mut opens = Vec::new();
    let mut walks = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        let model = Model::open(&path)?;
        opens.push(start.elapsed());
        let start = Instant::now();
        let strings = model.meta().strings("tokenizer.ggml.tokens")?;
        let bytes: usize = strings.iter().map(|text| text.as_bytes().len()).sum();
        let scores = model.meta().f32s("tokenizer.ggml.scores")?;
        walks.push(start.elapsed());
        assert_eq!((strings.len(), scores.len()), (tokens as usize, tokens as usize));
        assert!(bytes > 0);
    }
    opens.sort();
    walks.sort();
    println!("{tokens} tokens and as many merges, {} bytes", std::fs::metadata(&path)?.len());
    println!("open: median {:?}, best {:?}, worst {:?}", opens[10], opens[0], opens[20]);
    println!("walk over tokens and scores: median {:?}", walks[10]);
    std::fs::remove_file(path)?;
    Ok(())
}
