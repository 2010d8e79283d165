//! A small HTTP server whose answers, right or wrong, the tests choose.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// What a client asked for.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What the server answers.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Closes the connection after this many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// After what is sent, keeps the connection open and says nothing more.
    pub(crate) hang: bool,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), cut: None, hang: false }
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.into(), value.to_string()));
        self
    }
}

type Handler = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

/// A running server; it ends with the value.
pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server; where `handler` has no reply the connection is closed at once.
    pub(crate) fn start(handler: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let handler: Arc<Handler> = Arc::new(handler);
        let (seen_there, stop_there) = (seen.clone(), stop.clone());
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stop_there.load(Ordering::Relaxed) {
                    break;
                }
                let (Ok(stream), handler, seen) = (stream, handler.clone(), seen_there.clone()) else {
                    continue;
                };
                let stop = stop_there.clone();
                thread::spawn(move || serve(stream, &*handler, &seen, &stop));
            }
        });
        Self { address, seen, stop, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Answers one request. A client that went away is no failure of a test.
fn serve(stream: TcpStream, handler: &Handler, seen: &Mutex<Vec<Request>>, stop: &AtomicBool) {
    let Some(request) = read(&stream) else { return };
    seen.lock().unwrap().push(request.clone());
    let Some(reply) = handler(&request) else { return };
    let mut head = format!("HTTP/1.1 {} Status\r\nconnection: close\r\n", reply.status);
    head += &format!("content-length: {}\r\n", reply.body.len());
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
    let mut out = &stream;
    let _ = out
        .write_all(head.as_bytes())
        .and_then(|()| out.write_all(b"\r\n"))
        .and_then(|()| out.write_all(body));
    while reply.hang && !stop.load(Ordering::Relaxed) {
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    });
    Some(Request { path, headers: headers.collect() })
}
