//! A model whose layers are split over several devices gives what it gives on one: a tiny model of every family.

use std::sync::Arc;

use wootz::measure::trace;
use wootz::{Context, ContextOptions, Error, Model, ModelOptions, RowsWanted, StepPart};
use wootz_arch::{ARCHITECTURES, Architecture};
use wootz_quant::WeightType;
use wootz_testkit::tiny;

const TYPES: tiny::Types = tiny::Types(WeightType::Q4_0, WeightType::Q8_0);

fn model(arch: &dyn Architecture) -> Arc<Model> {
    let bytes = tiny::build(arch, TYPES, 7);
    Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap())
}

fn options(device: &str, split: Option<Vec<u32>>) -> ContextOptions {
    ContextOptions {
        device: device.into(),
        split,
        context: Some(256),
        threads: Some(2),
        sequences: 3,
        batch: Some(128),
        ..ContextOptions::default()
    }
}

fn context(model: &Arc<Model>, device: &str, split: Option<Vec<u32>>) -> Context {
    Context::new(model.clone(), &options(device, split), &mut |_| ()).unwrap()
}

fn text(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + i * i * 11 + seed * 101) % 256).collect()
}

/// Rows of all tokens of a text that is computed at once.
fn whole(context: &mut Context, tokens: &[u32]) -> Vec<f32> {
    let (sequence, _) = context.open_prefix(&[]).unwrap();
    let rows = context.step(&[StepPart { sequence, tokens, rows: RowsWanted::All }]).unwrap().data.to_vec();
    context.close(sequence);
    rows
}

/// Every way to cut so many layers into two or three runs.
fn cuts(layers: u32) -> Vec<Vec<u32>> {
    let mut cuts: Vec<Vec<u32>> = (1..layers).map(|first| vec![first, layers - first]).collect();
    cuts.extend((1..layers.saturating_sub(1)).map(|first| vec![first, 1, layers - first - 1]));
    cuts
}

#[test]
fn wherever_a_model_is_cut_its_rows_are_the_same() {
    for arch in ARCHITECTURES {
        let model = model(*arch);
        let tokens = text(100, 1);
        let expected = whole(&mut context(&model, "cpu", None), &tokens);
        for cut in cuts(u32::from(model.arch().hparams().layers)) {
            let devices = vec!["cpu"; cut.len()].join(",");
            let mut split = context(&model, &devices, Some(cut.clone()));
            assert_eq!(split.placement().iter().map(|(_, n)| *n as u32).collect::<Vec<_>>(), cut);
            assert_eq!(whole(&mut split, &tokens), expected, "{}, {cut:?}", arch.name());
        }
    }
}

#[test]
fn long_prompts_that_stages_compute_in_pieces_give_the_same() {
    for arch in wootz_arch::decoders() {
        let model = model(arch);
        let prompt = text(1100, 5);
        let row = |device: &str, split: Option<Vec<u32>>| {
            let options = ContextOptions { context: Some(1200), batch: Some(1100), ..options(device, split) };
            let mut context = Context::new(model.clone(), &options, &mut |_| ()).unwrap();
            let (sequence, _) = context.open_prefix(&[]).unwrap();
            let mut last = |tokens: &[u32]| {
                let part = StepPart { sequence, tokens, rows: RowsWanted::Last };
                context.step(&[part]).unwrap().data.to_vec()
            };
            [last(&prompt), last(&[7])]
        };
        let expected = row("cpu", None);
        let mut splits = vec![("cpu,cpu", None)];
        if model.arch().hparams().layers > 3 {
            splits.push(("cpu,cpu,cpu,cpu", None));
        }
        for (device, split) in splits {
            assert_eq!(row(device, split), expected, "{}, {device}", arch.name());
        }
    }
}

#[test]
fn caches_are_shared_copied_saved_and_restored_in_all_parts() {
    for arch in wootz_arch::decoders() {
        let model = model(arch);
        let tokens = text(100, 3);
        let expected = whole(&mut context(&model, "cpu", None), &tokens);
        let width = model.arch().hparams().vocab as usize;
        let path = std::env::temp_dir().join(format!("wootz-split-{}-{}", std::process::id(), arch.name()));
        let mut first = context(&model, "cpu,cpu", None);
        let whole = context(&model, "cpu", None).memory();
        assert_eq!(first.memory().caches, whole.caches, "{}", arch.name());
        let (sequence, _) = first.open_prefix(&[]).unwrap();
        // The prompt in pieces, with steps among them that return no row.
        for part in tokens[..80].chunks(33) {
            first.step(&[StepPart { sequence, tokens: part, rows: RowsWanted::None }]).unwrap();
        }
        // Both go on from the middle of a block that they share: one of them gets a copy of it.
        let other = first.fork(sequence).unwrap();
        let parts = [(other, 90), (sequence, 100)].map(|(sequence, end)| StepPart {
            sequence,
            tokens: &tokens[80..end],
            rows: RowsWanted::All,
        });
        let rows = first.step(&parts).unwrap().data.to_vec();
        assert_eq!(rows[..10 * width], expected[80 * width..90 * width], "{}", arch.name());
        assert_eq!(rows[10 * width..], expected[80 * width..], "{}", arch.name());
        first.close(sequence);
        let saved = first.save(&tokens[..80], &path).unwrap();
        let mut second = context(&model, "cpu,cpu", None);
        assert_eq!(second.restore(&path).unwrap(), saved);
        let (sequence, cached) = second.open_prefix(&tokens[..99]).unwrap();
        assert!(cached >= 64, "{}: {cached} tokens found", arch.name());
        let part = StepPart { sequence, tokens: &tokens[cached..], rows: RowsWanted::All };
        let rows = second.step(&[part]).unwrap().data;
        assert_eq!(rows, &expected[cached * width..], "{}", arch.name());
        assert!(matches!(context(&model, "cpu", None).restore(&path), Err(Error::State(_))));
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn each_device_traces_its_own_layers() {
    let model = model(wootz_arch::find("gemma3").unwrap());
    let mut split = context(&model, "cpu,cpu", Some(vec![5, 2]));
    let traced = trace(&mut split, 40, 2).unwrap();
    assert_eq!(traced.limits.len(), 2);
    for layer in 0..7 {
        let own: Vec<usize> =
            traced.steps.iter().filter(|s| s.layer == Some(layer)).map(|s| s.device).collect();
        assert!(!own.is_empty() && own.iter().all(|d| *d == usize::from(layer >= 5)), "layer {layer}");
    }
}

#[test]
fn splits_that_cannot_be_are_refused() {
    let model = model(wootz_arch::find("llama").unwrap());
    let refused = |device: &str, split: Option<Vec<u32>>| match Context::new(
        model.clone(),
        &options(device, split),
        &mut |_| (),
    ) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("{device} is accepted"),
    };
    for (device, split, told) in [
        ("cpu,cpu", Some(vec![1]), "found 1 shares, expected 2"),
        ("cpu", Some(vec![1, 1]), "found 2 shares, expected 1"),
        ("cpu,cpu", Some(vec![2, 0]), "found a share of 0"),
        ("cpu,cpu,cpu", None, "found 2 layers, expected at least 3"),
        ("cpu,gpu", None, "no device \"gpu\""),
        ("cpu,", None, "no device \"\""),
    ] {
        let error = refused(device, split);
        assert!(error.contains(told), "{device}: {error}");
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod emulated {
    use super::*;
    use wootz::sample::SamplingParams;
    use wootz::{Engine, EngineOptions, Event, Request};

    /// Greedy tokens of two answers at once, and whether steps were queued ahead.
    fn answers(model: &Arc<Model>, device: &str) -> (Vec<Vec<u32>>, bool) {
        let engine = Engine::start(context(model, device, None), EngineOptions::default()).unwrap();
        let sampling = SamplingParams { ignore_eos: true, ..SamplingParams::greedy() };
        let running: Vec<_> = [(70, 1), (20, 2)]
            .map(|(n, seed)| {
                let request = Request::new(text(n, seed)).max_tokens(12).sampling(sampling.clone());
                engine.generate(request).unwrap()
            })
            .into_iter()
            .collect();
        let tokens = running.into_iter().map(|events| {
            let token = |event| match event {
                Event::Token(token) => Some(token.token),
                Event::Failed(e) => panic!("{device}: {e}"),
                _ => None,
            };
            events.filter_map(token).collect()
        });
        let tokens = tokens.collect();
        (tokens, engine.stats().queued_ahead > 0)
    }

    #[test]
    fn greedy_tokens_are_those_of_one_device() {
        for arch in wootz_arch::decoders() {
            let bytes = tiny::build(arch, tiny::Types::FLOAT, 7);
            let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
            let (expected, _) = answers(&model, "cpu");
            assert!(expected.iter().all(|tokens| tokens.len() == 12), "{}", arch.name());
            for (device, picks) in [
                ("metal-emulator,metal-emulator:discrete", true),
                ("metal-emulator:discrete,cpu", false),
                ("cpu,metal-emulator", true),
            ] {
                let (found, ahead) = answers(&model, device);
                assert_eq!(found, expected, "{}, {device}", arch.name());
                // The last device picks tokens, and the first one is told.
                assert_eq!(ahead, picks, "{}, {device}", arch.name());
            }
        }
    }
}
