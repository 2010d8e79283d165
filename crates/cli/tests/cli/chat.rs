//! A conversation, driven through a pipe.

use serde_json::Value;
use wootz_testkit::models;

use crate::place::Place;

/// A chat that answers each message with eight tokens, none of which is special.
fn chat(more: &str) -> String {
    let special: Vec<String> =
        (256..288).filter(|id| *id != 259).map(|id| format!("--logit-bias {id}-inf")).collect();
    format!("chat tiny.gguf -n 8 --temp 0 --threads 1 {} {more}", special.join(" "))
}

/// Tokens of the prompt and those found in the cache, of every `/stats`.
fn stats(output: &str) -> Vec<(usize, usize)> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("prompt "));
    lines
        .map(|line| {
            let number = |text: &str| text.split(' ').next_back().unwrap().parse().unwrap();
            let (prompt, rest) = line.split_once(" tokens").unwrap();
            (number(prompt), rest.split_once(" cached").map_or(0, |(before, _)| number(before)))
        })
        .collect()
}

fn messages(place: &Place, file: &str) -> Vec<(String, String)> {
    let saved: Value = serde_json::from_str(&place.read(file)).unwrap();
    let text = |m: &Value, key: &str| m[key].as_str().unwrap().to_owned();
    saved["messages"].as_array().unwrap().iter().map(|m| (text(m, "role"), text(m, "content"))).collect()
}

fn roles(list: &[(String, String)]) -> Vec<&str> {
    list.iter().map(|(role, _)| role.as_str()).collect()
}

#[test]
fn only_the_new_turn_is_computed() {
    let place = Place::new();
    let output = place.ok_with(&chat(""), b"hello\n/stats\nand then?\n/stats\n");
    let stats = stats(&output);
    assert_eq!(stats.len(), 2, "{output}");
    let (first, cached) = stats[0];
    assert_eq!(cached, 0);
    // All of the first prompt is there, and of the answer what the second prompt repeats token by token: at most all
    // but its last token, which was never computed.
    let (prompt, cached) = stats[1];
    assert!((first..first + 8).contains(&cached), "{output}");
    let markup = "\n\u{1}user\n\u{1}\n\u{1}assistant\n".len();
    assert!(prompt - cached <= 8 + 1 + markup + "and then?".len(), "{output}");
    assert!(output.contains("of context; memory: weights "), "{output}");
}

#[test]
fn a_real_model_computes_only_the_new_turn() {
    let place = Place::new();
    let model = models::fetched("smollm2-135m-instruct-q4_1.gguf");
    std::fs::hard_link(&model, place.path("real.gguf"))
        .or_else(|_| std::fs::copy(&model, place.path("real.gguf")).map(|_| ()))
        .unwrap();
    let input = b"My name is Ada.\n/stats\nWhat is my name?\n/stats\n/save talk.json\n";
    let output = place.ok_with("chat real.gguf -n 24 --temp 0 --ctx 512", input);
    let list = messages(&place, "talk.json");
    assert_eq!(roles(&list), ["user", "assistant", "user", "assistant"]);
    let stats = stats(&output);
    assert!(stats[1].1 > stats[0].0, "{output}");
}

#[test]
fn saved_and_loaded_it_goes_on_the_same() {
    let place = Place::new();
    let straight = place.ok_with(&chat(""), b"hello\n/save a.json\nagain\n/stats\n/save b.json\n");
    assert_eq!(place.names(), ["a.json", "a.json.state", "b.json", "b.json.state", "tiny.gguf"]);
    let loaded = place.ok_with(&chat(""), b"/load a.json\nagain\n/stats\n/save c.json\n");
    assert_eq!(messages(&place, "b.json"), messages(&place, "c.json"));
    assert_eq!(stats(&straight), stats(&loaded), "the state comes from the file");
    let option = place.ok_with(&chat("--load a.json"), b"again\n/stats\n");
    assert_eq!(stats(&straight), stats(&option));
    // Without its state, or with a broken one, a conversation is computed anew.
    place.write("a.json.state", b"broken");
    let anew = place.ok_with(&chat(""), b"/load a.json\nagain\n/stats\n/save d.json\n");
    assert_eq!(stats(&anew)[0].1, 0);
    assert_eq!(roles(&messages(&place, "d.json")), ["user", "assistant", "user", "assistant"]);
}

#[test]
fn commands_change_the_conversation() {
    let place = Place::new();
    let input =
        "/system\n/system Be brief.\n/system\none\ntwo\n/regen\n/save four.json\n/clear\n/save none.json\n";
    let output = place.ok_with(&chat("--system Old."), input.as_bytes());
    assert!(output.starts_with("Old.\nBe brief.\n"), "{output}");
    let list = messages(&place, "four.json");
    assert_eq!(roles(&list), ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(list[3].1, "two");
    assert_eq!(messages(&place, "none.json"), [("system".to_owned(), "Be brief.".to_owned())]);
    let help = place.ok_with(&chat(""), b"/help\n/exit\nnot read\n");
    for command in ["/system", "/clear", "/regen", "/save", "/load", "/stats", "/help", "/exit"] {
        assert!(help.contains(&format!("\n{command}")) || help.starts_with(command), "{help}");
    }
}

#[test]
fn a_message_may_have_many_lines() {
    let place = Place::new();
    place.ok_with(&chat(""), b"one \\\ntwo\n\"\"\"\n/three\n\n/four\\\n\"\"\"\n\n/save m.json\n");
    let list = messages(&place, "m.json");
    assert_eq!((list[0].1.as_str(), list[2].1.as_str()), ("one \ntwo", "/three\n\n/four\\"));
}

#[test]
fn what_fails_in_a_script_ends_it() {
    let place = Place::new();
    let fails = |input: &str, parts: &[&str]| {
        let line = place.fails_with(&chat(""), input.as_bytes());
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {line}");
    };
    fails("/novel\nhello\n", &["/novel", "/help"]);
    fails("/regen\nhello\n", &["no message"]);
    fails("/save\n", &["/save takes a file"]);
    fails("/save no/where.json\n", &["where.json"]);
    fails("/load none.json\n", &["none.json"]);
    place.write("other.json", b"[1, 2]");
    fails("/load other.json\n", &["other.json"]);
    let long = format!("{}\n", "long ".repeat(200));
    fails(&long, &["do not fit the context"]);
}
