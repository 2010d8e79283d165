//! Spans and lines of the log.

use std::io::Write;
use std::sync::{Mutex, Once, PoisonError};

use serde_json::{Value, json};

use crate::place::Place;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Keeps what all servers of these tests log from now on.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let log = tracing_subscriber::fmt().json().with_writer(|| Lines);
        log.with_max_level(tracing_subscriber::filter::LevelFilter::TRACE).init();
    });
}

fn text() -> String {
    String::from_utf8(LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap()
}

/// The lines of a request, by message.
fn lines(id: &str) -> Vec<(String, Value)> {
    let parsed = text().lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    let own = parsed.into_iter().filter(|line| line["spans"][0]["id"] == id);
    own.map(|line| (line["fields"]["message"].as_str().unwrap().to_owned(), line)).collect()
}

#[test]
fn every_answer_has_a_span_and_no_words_are_in_the_log() {
    let place = Place::new();
    let send = |id: &str, body: &Value| {
        let headers = [("X-Request-Id", id), ("Content-Type", "application/json")];
        place.send("POST", "/v1/chat/completions", &headers, body.to_string().as_bytes()).whole()
    };
    let secret = "the password is xyzzy";
    let body = json!({
        "messages": [{ "role": "user", "content": secret }], "n": 2, "max_tokens": 20, "seed": 1, "ignore_eos": true,
        "stream": true, "colour_of_the_day": "blue",
        "logit_bias": (0..288).filter(|id| !(97..=122).contains(id)).map(|id| json!([id, -100])).collect::<Value>(),
    });
    let reply = send("log-1", &body);
    assert_eq!(reply.status, 200);
    place.await_metric("wootz:requests_processing", 0.0);
    let own = lines("log-1");
    let of =
        |message: &str| own.iter().filter(|(m, _)| m == message).map(|(_, line)| line).collect::<Vec<_>>();
    assert!(
        own.iter().any(|(m, line)| m.ends_with("colour_of_the_day") && line["level"] == "DEBUG"),
        "{own:?}"
    );
    let responded = of("responded");
    assert_eq!((responded.len(), &responded[0]["fields"]["status"]), (1, &json!(200)));
    assert_eq!(responded[0]["spans"][0]["path"], "/v1/chat/completions");
    let answered = of("answered");
    assert_eq!(answered.len(), 2, "{own:?}");
    for line in answered {
        let answer = &line["spans"][1];
        assert_eq!(
            (&answer["name"], &answer["model"], &answer["end"]),
            (&json!("answer"), &json!("tiny"), &json!("length"))
        );
        assert_eq!(answer["tokens"], 20);
        assert!(answer["prompt_tokens"].as_u64().unwrap() > 20 && answer["cached_tokens"].is_u64());
        let time = |name: &str| answer[name].as_f64().unwrap_or_else(|| panic!("{line}"));
        assert!(time("first_token_ms") >= time("queue_ms") && time("tokens_per_second") > 0.0);
    }
    // Refusals tell the field, not what was in it.
    let wrong = json!({ "messages": secret, "max_tokens": 2 });
    assert_eq!(send("log-2", &wrong).status, 400);
    assert_eq!(lines("log-2").len(), 2);
    let log = text();
    assert!(!log.contains("xyzzy"));
    let data = reply.text();
    let words: String = data
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .filter(|chunk| chunk["choices"][0]["index"] == 0)
        .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert!(words.len() == 20 && !log.contains(&words), "{words}");
}
