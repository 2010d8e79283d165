//! `wootz serve`: that it starts, answers, and stops when asked to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Child;

use crate::place::Place;

/// The address that a server prints when it listens.
fn address(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let (_, address) = line.trim_end().split_once(" at http://").unwrap_or_else(|| panic!("{line:?}"));
    address.to_owned()
}

fn request(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let text = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn a_server_answers_until_it_is_stopped() {
    let place = Place::new();
    place.write("presets.toml", b"[models.second]\nmodel = \"tiny.gguf\"\naliases = [\"other\"]\n");
    let mut child = place
        .spawn("serve tiny.gguf --alias first --presets presets.toml --port 0 --ctx 256 --log-format json");
    let address = address(&mut child);
    let models = request(&address, "GET /v1/models", "");
    assert!(models.contains("\"id\":\"first\"") && models.contains("\"aliases\":[\"other\"]"), "{models}");
    let body = "{\"model\": \"other\", \"prompt\": \"abc\", \"max_tokens\": 3, \"ignore_eos\": true}";
    let reply = request(&address, "POST /v1/completions", body);
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("\"completion_tokens\":3"), "{reply}");
    if cfg!(unix) {
        let id = child.id().to_string();
        let killed = std::process::Command::new("kill").args(["-INT", &id]).status().unwrap();
        assert!(killed.success());
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{log}");
        let lines: Vec<serde_json::Value> = log.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let answered =
            lines.iter().find(|line| line["message"] == "answered").unwrap_or_else(|| panic!("{log}"));
        let (request, answer) = (&answered["spans"][0], &answered["spans"][1]);
        assert_eq!((&request["path"], &answer["model"]), (&"/v1/completions".into(), &"second".into()));
        assert_eq!((&answer["tokens"], &answer["end"]), (&3.into(), &"length".into()));
        assert!(lines.iter().any(|line| line["message"] == "responded" && line["status"] == 200), "{log}");
        assert!(!log.contains("abc"), "prompts stay out of the log: {log}");
    } else {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn what_cannot_be_served_is_told() {
    let place = Place::new();
    assert!(place.fails("serve").contains("MODEL"), "a model is needed");
    place.write("presets.toml", b"[models.a]\nmodel = \"tiny.gguf\"\ntemperature = 1\n");
    let line = place.fails("serve --presets presets.toml");
    assert!(line.contains("unknown field `temperature`"), "{line}");
    let line = place.fails("serve tiny.gguf --origin example.org");
    assert!(line.contains("--origin takes a scheme and a host"), "{line}");
    let line = place.fails("serve tiny.gguf tiny.gguf --port 0");
    assert!(line.contains("two models have the name"), "{line}");
}
