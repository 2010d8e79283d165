//! Several models: loaded when asked for, and given up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use wootz_server::{ModelSpec, ServerOptions};

use crate::place::{Place, tiny_spec};

fn ask(place: &Place, model: &str) -> (u16, Value) {
    let reply = place.post("/v1/completions", &json!({ "model": model, "prompt": "a", "max_tokens": 1 }));
    (reply.status, reply.json())
}

fn status(place: &Place, name: &str) -> String {
    place.get(&format!("/v1/models/{name}")).json()["status"]["value"].as_str().unwrap().to_owned()
}

fn await_status(place: &Place, name: &str, wanted: &str) {
    let start = std::time::Instant::now();
    while status(place, name) != wanted {
        assert!(start.elapsed() < crate::place::PATIENCE, "{name} is {}", status(place, name));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn models_are_loaded_once_and_when_asked_for() {
    let (one, first) = tiny_spec("one", 1);
    let (two, second) = tiny_spec("two", 1);
    let place = Arc::new(Place::serving(vec![one, two], ServerOptions::default()));
    await_status(&place, "one", "loaded");
    assert_eq!(status(&place, "two"), "unloaded");
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let place = place.clone();
            std::thread::spawn(move || ask(&place, "two-alias"))
        })
        .collect();
    for thread in threads {
        let (status, reply) = thread.join().unwrap();
        assert_eq!((status, &reply["model"]), (200, &json!("two")));
    }
    assert_eq!((first.load(Ordering::SeqCst), second.load(Ordering::SeqCst)), (1, 1));
    let (status, reply) = ask(&place, "three");
    assert_eq!((status, &reply["error"]["code"]), (404, &json!("model_not_found")));
    assert!(reply["error"]["message"].as_str().unwrap().contains("one, two"));
    let unload = place.post("/models/unload", &json!({ "model": "two" }));
    assert_eq!(unload.status, 200);
    await_status(&place, "two", "unloaded");
    place.ok("/models/load", &json!({ "model": "two" }));
    assert_eq!(second.load(Ordering::SeqCst), 2);
}

#[test]
fn the_one_used_last_stays() {
    let specs = ["one", "two"].map(|name| tiny_spec(name, 1).0).to_vec();
    let place = Place::serving(specs, ServerOptions { models_max: 1, ..ServerOptions::default() });
    await_status(&place, "one", "loaded");
    assert_eq!(ask(&place, "two").0, 200);
    assert_eq!((status(&place, "one").as_str(), status(&place, "two").as_str()), ("unloaded", "loaded"));
    // One that is in use cannot make room.
    let busy =
        json!({ "model": "two", "prompt": "a", "max_tokens": 4000, "ignore_eos": true, "stream": true });
    let _running = place.begin("/v1/completions", &busy);
    let (status, reply) = ask(&place, "one");
    assert_eq!(status, 503, "{reply}");
    assert_eq!(place.post("/models/unload", &json!({ "model": "two" })).status, 429);
}

#[test]
fn idle_models_leave_memory() {
    let options = ServerOptions { unload_after: Some(Duration::from_millis(50)), ..ServerOptions::default() };
    let (spec, loads) = tiny_spec("one", 1);
    let place = Place::serving(vec![spec], options);
    await_status(&place, "one", "loaded");
    await_status(&place, "one", "unloaded");
    assert_eq!(ask(&place, "one").0, 200);
    assert_eq!(loads.load(Ordering::SeqCst), 2);
}

#[test]
fn a_model_that_cannot_be_loaded_is_told() {
    let broken =
        |name: &str| ModelSpec { load: Arc::new(|_| Err("the file is gone".into())), ..tiny_spec(name, 1).0 };
    let e = Place::serving(vec![broken("one")], ServerOptions::default()).wait().unwrap_err();
    assert_eq!(e.to_string(), "the model \"one\" cannot be loaded: the file is gone");
    // At the first request it is the request that fails.
    let place = Place::serving(vec![tiny_spec("one", 1).0, broken("two")], ServerOptions::default());
    let (status, reply) = ask(&place, "two");
    assert_eq!((status, &reply["error"]["type"]), (503, &json!("unavailable_error")));
    assert_eq!(ask(&place, "one").0, 200);
}

#[test]
fn models_share_a_limit_of_memory() {
    let specs = ["one", "two"].map(|name| tiny_spec(name, 1).0).to_vec();
    // The weights of the tiny model are small beside its cache.
    let one = (specs[0].load)(None).unwrap().memory();
    let memory = |n: u64| Some(n * (one.weights + one.caches) + one.caches / 2);
    for (n, first) in [(1, "unloaded"), (2, "loaded")] {
        let options = ServerOptions { memory: memory(n), ..ServerOptions::default() };
        let place = Place::serving(specs.clone(), options);
        await_status(&place, "one", "loaded");
        assert_eq!(ask(&place, "two").0, 200);
        assert_eq!(status(&place, "one"), first, "room for {n}");
    }
    let options = ServerOptions { memory: Some(one.caches / 2), ..ServerOptions::default() };
    let e = Place::serving(specs, options).wait().unwrap_err();
    assert!(e.to_string().contains("cannot be loaded"), "{e}");
}

#[test]
fn idle_models_make_room_where_memory_is_short() {
    let (one, _) = tiny_spec("one", 1);
    let (two, loads) = tiny_spec("two", 1);
    let (load, tries) = (two.load.clone(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let count = tries.clone();
    let scarce = move |memory| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Err(wootz::Error::ContextMemory { context: 9, needed: 2, available: 1 }.into()),
        _ => load(memory),
    };
    let two = ModelSpec { load: Arc::new(scarce), ..two };
    let place = Place::serving(vec![one, two], ServerOptions::default());
    await_status(&place, "one", "loaded");
    assert_eq!(ask(&place, "two").0, 200);
    assert_eq!((tries.load(Ordering::SeqCst), loads.load(Ordering::SeqCst)), (2, 1));
    assert_eq!(status(&place, "one"), "unloaded");
}
