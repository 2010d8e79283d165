//! A server with a tiny model, and a client that speaks plain HTTP/1.1 to it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use wootz::{Context, ContextOptions, Model, ModelOptions};
use wootz_quant::WeightType;
use wootz_server::{ModelSpec, Preset, Server, ServerError, ServerOptions};
use wootz_testkit::tiny;

/// Longest wait for anything: a hang becomes a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Context of the tiny model, whose tokens are bytes.
pub(crate) const CONTEXT: usize = 4096;

/// A model of two layers with random weights and a vocabulary of bytes, and how often it was loaded.
pub(crate) fn tiny_spec(name: &str, parallel: usize) -> (ModelSpec, Arc<AtomicUsize>) {
    templated_spec(name, parallel, None)
}

/// The same with another chat template.
pub(crate) fn templated_spec(
    name: &str,
    parallel: usize,
    template: Option<&str>,
) -> (ModelSpec, Arc<AtomicUsize>) {
    let chat_template = template.map(str::to_owned);
    let loads = Arc::new(AtomicUsize::new(0));
    let count = loads.clone();
    let load = move |memory| {
        count.fetch_add(1, Ordering::SeqCst);
        let llama = wootz_arch::find("llama").unwrap();
        let bytes = tiny::build(llama, tiny::Types(WeightType::Q4_0, WeightType::Q8_0), 7);
        let model = Arc::new(Model::from_bytes(
            bytes,
            &ModelOptions { chat_template: chat_template.clone(), ..ModelOptions::default() },
        )?);
        let options = ContextOptions {
            context: Some(CONTEXT),
            threads: Some(1),
            sequences: parallel,
            batch: Some(128),
            memory,
            ..ContextOptions::default()
        };
        Ok(Context::new(model, &options, &mut |_| ())?)
    };
    let spec = ModelSpec {
        name: name.to_owned(),
        aliases: vec![format!("{name}-alias")],
        source: "(tiny)".to_owned(),
        path: None,
        load: Arc::new(load),
        preset: Preset::default(),
    };
    (spec, loads)
}

pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place::with(ServerOptions::default())
    }

    pub(crate) fn with(options: ServerOptions) -> Place {
        Place::serving(vec![tiny_spec("tiny", 4).0], options)
    }

    pub(crate) fn templated(template: &str) -> Place {
        Place::serving(vec![templated_spec("tiny", 4, Some(template)).0], ServerOptions::default())
    }

    pub(crate) fn serving(models: Vec<ModelSpec>, options: ServerOptions) -> Place {
        crate::log::keep();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let result = runtime.block_on(async {
                let address = "127.0.0.1:0".parse().unwrap();
                let server = Server::bind(address, models, options).await?;
                tell.send(server.address()).unwrap();
                server
                    .run(async {
                        let _ = stopped.await;
                    })
                    .await
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
            result
        });
        let address = told.recv_timeout(PATIENCE).expect("the server listens");
        Place { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Asks the server to stop, without waiting.
    pub(crate) fn ask_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Stops the server and tells how it ended.
    pub(crate) fn end(mut self) -> Result<(), ServerError> {
        self.ask_to_stop();
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits for the server to end by itself.
    pub(crate) fn wait(mut self) -> Result<(), ServerError> {
        self.thread.take().unwrap().join().unwrap()
    }

    /// Sends a request and reads no more than its head.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses early does not read on.
        let _ = stream.write_all(body);
        Reply::head(stream)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"").whole()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.begin(path, body).whole()
    }

    /// Posts and reads the head of the reply.
    pub(crate) fn begin(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    /// The JSON of a reply with status 200.
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.json()
    }

    /// The objects of a stream of events with status 200, without its end.
    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        assert_eq!(reply.header("content-type"), "text/event-stream");
        let text = reply.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// The message and field of a request that is refused with 400.
    pub(crate) fn refused(&self, path: &str, body: &Value) -> (String, Value) {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
        let error = reply.json()["error"].clone();
        (error["message"].as_str().unwrap().to_owned(), error["param"].clone())
    }

    /// The value of one of the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Waits until a metric has a value.
    pub(crate) fn await_metric(&self, name: &str, wanted: f64) {
        let start = Instant::now();
        while self.metric(name) != wanted {
            assert!(start.elapsed() < PATIENCE, "{name} is {}, not {wanted}", self.metric(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// The connection, as long as the body is not read.
    pub(crate) rest: Option<BufReader<TcpStream>>,
}

impl Reply {
    fn head(stream: TcpStream) -> Reply {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status: {line:?}")).parse().unwrap();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        Reply { status, headers, body: Vec::new(), rest: Some(reader) }
    }

    /// The same with its whole body.
    pub(crate) fn whole(mut self) -> Reply {
        while self.more() {}
        self
    }

    /// Reads the next chunk, or all that is left of a body without chunks; `false` at the end.
    pub(crate) fn more(&mut self) -> bool {
        let Some(reader) = &mut self.rest else { return false };
        if self.headers.get("transfer-encoding").is_none_or(|t| t != "chunked") {
            reader.read_to_end(&mut self.body).unwrap();
            self.rest = None;
            return false;
        }
        let mut line = String::new();
        // A server that is stopped breaks the connection.
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            self.rest = None;
            return false;
        }
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).unwrap();
        self.body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            self.rest = None;
        }
        size > 0
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}
