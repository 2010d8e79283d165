//! A GPU against the CPU. On a machine without one nothing runs, and the tests say so.

use std::sync::Arc;

use wootz::{Context, ContextOptions, Error, KvType, Model, ModelOptions, RowsWanted, StepPart};
use wootz_arch::ARCHITECTURES;
use wootz_quant::WeightType;
use wootz_testkit::{models, nmse, tiny};

/// Types of the matrices: fast ones, float ones, and ones that have plain kernels alone.
const TYPES: [tiny::Types; 5] = [
    tiny::Types(WeightType::Q4_0, WeightType::Q8_0),
    tiny::Types(WeightType::F16, WeightType::F16),
    tiny::Types(WeightType::BF16, WeightType::BF16),
    tiny::Types(WeightType::F32, WeightType::F32),
    tiny::Types(WeightType::Q5_0, WeightType::Q5_1),
];

/// The first GPU.
fn gpu() -> Option<String> {
    let found = wootz::devices().unwrap();
    let cuda = found.into_iter().filter(|b| b.backend == "cuda").flat_map(|b| b.devices.unwrap());
    let id = cuda.map(|d| d.id).next();
    if id.is_none() {
        eprintln!("NOT RUN: there is no GPU that NVIDIA's driver knows");
    }
    id
}

fn context(model: &Arc<Model>, device: &str, kv: KvType) -> Context {
    let options = ContextOptions {
        device: device.to_owned(),
        threads: Some(4),
        context: Some(512),
        sequences: 3,
        batch: 256,
        k_type: kv,
        v_type: kv,
    };
    Context::new(model.clone(), &options, &mut |_| ()).unwrap()
}

fn text(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + i * i * 11) % 256).collect()
}

/// Logits of the last token of a prompt given in chunks, and of each of the tokens after it.
fn run(context: &mut Context, prompt: &[u32], chunk: usize, after: &[u32]) -> Vec<Vec<f32>> {
    let (sequence, _) = context.open_prefix(&[]).unwrap();
    let mut rows = Vec::new();
    let mut step = |tokens: &[u32], keep: bool| {
        let output = context.step(&[StepPart { sequence, tokens, rows: RowsWanted::Last }]).unwrap();
        rows.extend(keep.then(|| output.row(0).to_vec()));
    };
    let chunks = prompt.chunks(chunk);
    let last = chunks.len() - 1;
    for (i, chunk) in chunks.enumerate() {
        step(chunk, i == last);
    }
    after.iter().for_each(|token| step(&[*token], true));
    context.close(sequence);
    rows
}

#[test]
fn every_family_gives_what_the_cpu_gives() {
    let Some(gpu) = gpu() else { return };
    for arch in ARCHITECTURES {
        for types in TYPES {
            let bytes = tiny::build(*arch, types, 7);
            let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
            for kv in KvType::ALL {
                let expected = run(&mut context(&model, "cpu", kv), &text(200), 200, &text(20));
                let mut context = context(&model, &gpu, kv);
                for chunk in [200, 70, 5, 1] {
                    let found = run(&mut context, &text(200), chunk, &text(20));
                    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let error = nmse(found, expected);
                        let name = arch.name();
                        assert!(
                            error < 2e-3,
                            "{name}, {types:?}, {} cache, chunks of {chunk}, row {step}: {error:.1e}",
                            kv.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_same_steps_give_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    for arch in ARCHITECTURES {
        let bytes = tiny::build(*arch, TYPES[0], 7);
        let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
        let mut first = context(&model, &gpu, KvType::F16);
        let mut second = context(&model, &gpu, KvType::F16);
        let expected = run(&mut first, &text(150), 64, &text(30));
        assert_eq!(expected, run(&mut first, &text(150), 64, &text(30)), "{}", arch.name());
        assert_eq!(expected, run(&mut second, &text(150), 64, &text(30)), "{}", arch.name());
    }
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let Some(gpu) = gpu() else { return };
    let bytes = tiny::build(ARCHITECTURES[0], TYPES[0], 7);
    let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
    let options = ContextOptions { device: gpu, context: Some(1 << 40), ..ContextOptions::default() };
    let refused = Context::new(model, &options, &mut |_| ()).err();
    assert!(matches!(refused, Some(Error::ContextMemory { .. })), "{refused:?}");
}

#[test]
fn smollm2_says_what_the_cpu_says() {
    let Some(gpu) = gpu() else { return };
    let path = models::fetched("smollm2-135m-instruct-q4_1.gguf");
    let model = Arc::new(Model::open(path, &ModelOptions::default()).unwrap());
    let prompt = model.tokenize(b"The three most important inventions of the nineteenth century were");
    let best = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
    let mut cpu = context(&model, "cpu", KvType::F16);
    let (sequence, _) = cpu.open_prefix(&[]).unwrap();
    let (mut tokens, mut logits, mut input) = (Vec::new(), Vec::new(), prompt.clone());
    for _ in 0..64 {
        let output = cpu.step(&[StepPart { sequence, tokens: &input, rows: RowsWanted::Last }]).unwrap();
        logits.push(output.row(0).to_vec());
        tokens.push(best(output.row(0)));
        input = vec![*tokens.last().unwrap()];
    }
    let found = run(&mut context(&model, &gpu, KvType::F16), &prompt, 256, &tokens);
    for (step, (found, expected)) in found.iter().zip(&logits).enumerate() {
        let (found_best, expected_best) = (best(found), best(expected));
        let gap = expected[expected_best as usize] - expected[found_best as usize];
        assert!(gap < 0.2, "step {step}: {found_best} instead of {expected_best}, {gap} apart");
        assert!(nmse(found, expected) < 2e-3, "step {step}: {:.1e}", nmse(found, expected));
    }
    let same = found.iter().zip(&logits).filter(|(f, e)| best(f) == best(e)).count();
    println!("{same} of {} tokens are those of the CPU", found.len());
    assert!(same + 2 >= found.len(), "only {same} of {} tokens are those of the CPU", found.len());
}
