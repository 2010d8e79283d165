//! Counters of the server, as Prometheus reads them.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets of times, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// How often a time fell below each bound.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One more than bounds: the last is for all above.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, about: &str) {
        let _ = writeln!(out, "# HELP {name} {about}\n# TYPE {name} histogram");
        let mut count = 0;
        for (bucket, bound) in
            self.buckets.iter().zip(BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]))
        {
            count += bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let sum = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
    }
}

/// What has happened since the server started.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) queued: Histogram,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) prompt_micros: AtomicU64,
    pub(crate) generation_micros: AtomicU64,
    pub(crate) finished: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Responses by the first digit of their status.
    responses: [AtomicU64; 6],
}

/// What is going on at the moment, summed over all models.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Present {
    pub(crate) models: usize,
    pub(crate) stats: wootz::EngineStats,
    pub(crate) waiting: usize,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Metrics {
    pub(crate) fn response(&self, status: u16) {
        if let Some(counter) = self.responses.get(usize::from(status / 100)) {
            add(counter, 1);
        }
    }

    /// All of it in Prometheus' text format. Names that llama.cpp has as well are given with its prefix too.
    pub(crate) fn text(&self, now: &Present) -> String {
        let mut out = String::new();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut one = |name: &str, kind: &str, about: &str, value: f64| {
            let _ = writeln!(out, "# HELP {name} {about}\n# TYPE {name} {kind}\n{name} {value}");
        };
        let seconds = |counter: &AtomicU64| get(counter) as f64 / 1e6;
        let rate = |count: u64, time: f64| if time > 0.0 { count as f64 / time } else { 0.0 };
        let computed = get(&self.prompt_tokens) - get(&self.cached_tokens).min(get(&self.prompt_tokens));
        let counters: [(&str, &str, f64); 11] = [
            ("prompt_tokens_total", "Tokens of prompts.", get(&self.prompt_tokens) as f64),
            (
                "prompt_cached_tokens_total",
                "Tokens of prompts found in the cache.",
                get(&self.cached_tokens) as f64,
            ),
            ("prompt_seconds_total", "Time for prompts.", seconds(&self.prompt_micros)),
            ("tokens_predicted_total", "Tokens generated.", get(&self.generated_tokens) as f64),
            ("tokens_predicted_seconds_total", "Time of generation.", seconds(&self.generation_micros)),
            ("requests_finished_total", "Answers that came to their end.", get(&self.finished) as f64),
            ("requests_cancelled_total", "Answers that nobody waited for.", get(&self.cancelled) as f64),
            ("requests_failed_total", "Answers that failed.", get(&self.failed) as f64),
            ("requests_refused_total", "Requests refused as the queue was full.", get(&self.refused) as f64),
            ("steps_total", "Steps of the engines that are loaded.", now.stats.steps as f64),
            (
                "preempted_total",
                "Running requests that had to wait again, of the engines that are loaded.",
                now.stats.preempted as f64,
            ),
        ];
        for (name, about, value) in counters {
            one(&format!("wootz:{name}"), "counter", about, value);
        }
        let gauges: [(&str, &str, f64); 7] = [
            ("models_loaded", "Models in memory.", now.models as f64),
            ("requests_processing", "Requests that run.", now.stats.running as f64),
            ("requests_deferred", "Requests that wait.", now.waiting as f64),
            ("batch_tokens", "Tokens of a step on average.", rate(now.stats.tokens, now.stats.steps as f64)),
            (
                "batch_requests",
                "Requests of a step on average.",
                rate(now.stats.parts, now.stats.steps as f64),
            ),
            (
                "kv_blocks_used",
                "Blocks of the caches that running requests hold.",
                now.stats.blocks_used as f64,
            ),
            ("kv_blocks", "Blocks of the caches.", now.stats.blocks as f64),
        ];
        for (name, about, value) in gauges {
            one(&format!("wootz:{name}"), "gauge", about, value);
        }
        let speed = rate(computed, seconds(&self.prompt_micros));
        one("llamacpp:prompt_tokens_seconds", "gauge", "Prompt tokens computed per second.", speed);
        let speed = rate(get(&self.generated_tokens), seconds(&self.generation_micros));
        one("llamacpp:predicted_tokens_seconds", "gauge", "Tokens generated per second.", speed);
        one("llamacpp:prompt_tokens_total", "counter", "Prompt tokens computed.", computed as f64);
        one(
            "llamacpp:tokens_predicted_total",
            "counter",
            "Tokens generated.",
            get(&self.generated_tokens) as f64,
        );
        let seconds_of = [("prompt", &self.prompt_micros), ("tokens_predicted", &self.generation_micros)];
        for (name, micros) in seconds_of {
            one(&format!("llamacpp:{name}_seconds_total"), "counter", "Time for it.", seconds(micros));
        }
        one("llamacpp:n_decode_total", "counter", "Steps of the engines.", now.stats.steps as f64);
        let busy = rate(now.stats.parts, now.stats.steps as f64);
        one("llamacpp:n_busy_slots_per_decode", "gauge", "Requests of a step on average.", busy);
        one("llamacpp:requests_processing", "gauge", "Requests that run.", now.stats.running as f64);
        one("llamacpp:requests_deferred", "gauge", "Requests that wait.", now.waiting as f64);
        let _ =
            writeln!(out, "# HELP wootz:responses_total Responses.\n# TYPE wootz:responses_total counter");
        for (class, counter) in self.responses.iter().enumerate().skip(2) {
            let _ = writeln!(out, "wootz:responses_total{{status=\"{class}xx\"}} {}", get(counter));
        }
        let first = "From a request's arrival to its first token, in seconds.";
        self.first_token.write(&mut out, "wootz:time_to_first_token_seconds", first);
        let between = "Between two tokens of an answer, in seconds.";
        self.between_tokens.write(&mut out, "wootz:inter_token_seconds", between);
        let queued = "From a request's arrival to its first step, in seconds.";
        self.queued.write(&mut out, "wootz:queue_seconds", queued);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let histogram = Histogram::default();
        for millis in [1, 2, 40, 90_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut out = String::new();
        histogram.write(&mut out, "t", "about");
        assert!(out.contains("t_bucket{le=\"0.001\"} 1\n"), "{out}");
        assert!(out.contains("t_bucket{le=\"0.05\"} 3\n"), "{out}");
        assert!(
            out.contains("t_bucket{le=\"60\"} 3\n") && out.contains("t_bucket{le=\"+Inf\"} 4\n"),
            "{out}"
        );
        assert!(out.contains("t_sum 90.043\n") && out.contains("t_count 4\n"), "{out}");
    }
}
