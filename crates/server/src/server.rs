//! The server: its options, its state, its life from start to stop.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use wootz::EngineOptions;

use crate::http;
use crate::metrics::{Metrics, Present};
use crate::models::{ModelSpec, Models, Room};

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Keys of which every request must carry one; none asks for none.
    pub api_keys: Vec<String>,
    /// Origins whose pages may read responses, such as `https://example.org`; `*` for all.
    pub origins: Vec<String>,
    /// Bytes of a request at most.
    pub body_limit: usize,
    /// Requests to a model that may wait; more are answered with 429.
    pub queue: usize,
    /// Requests to a model that may run at once, as far as its cache has room.
    pub running: usize,
    /// Longest time of a request; `None` for no limit.
    pub timeout: Option<Duration>,
    /// How long answers that run may go on after a stop was asked for.
    pub grace: Duration,
    /// How often a quiet stream gets a sign of life.
    pub keep_alive: Duration,
    /// Models in memory at most.
    pub models_max: usize,
    /// Bytes that all models in memory may take together; `None` for as many as are free.
    pub memory: Option<u64>,
    /// Time after which a model that nobody uses leaves memory; `None` for never.
    pub unload_after: Option<Duration>,
    /// Whether a model is loaded at the start, so that the first request does not wait.
    pub load_at_start: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            api_keys: Vec::new(),
            origins: Vec::new(),
            body_limit: 32 << 20,
            queue: 256,
            running: 64,
            timeout: Some(Duration::from_secs(3600)),
            grace: Duration::from_secs(10),
            keep_alive: http::KEEP_ALIVE,
            models_max: 4,
            memory: None,
            unload_after: None,
            load_at_start: true,
        }
    }
}

/// What all requests share.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) models: Arc<Models>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether only this machine is served.
    pub(crate) loopback: bool,
}

impl App {
    /// What is going on at the moment.
    pub(crate) fn present(&self) -> Present {
        let mut now = Present::default();
        for model in self.models.loaded() {
            let stats = model.engine.stats();
            now.models += 1;
            now.waiting += model.engine.waiting();
            now.stats.running += stats.running;
            now.stats.steps += stats.steps;
            now.stats.tokens += stats.tokens;
            now.stats.parts += stats.parts;
            now.stats.preempted += stats.preempted;
            now.stats.blocks += stats.blocks;
            now.stats.blocks_used += stats.blocks_used;
        }
        now
    }
}

/// Why a server could not start or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The options do not fit together.
    #[error("{0}")]
    Options(String),
    /// The model that was to be loaded at the start cannot be.
    #[error("{0}")]
    Load(String),
    /// The server failed while it ran.
    #[error("the server failed: {0}")]
    Run(#[from] std::io::Error),
}

/// A server that listens but does not answer yet.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
}

/// How often models are looked at that nobody uses.
const SWEEP: Duration = Duration::from_secs(1);

impl Server {
    /// Listens on an address. Needs tokio's runtime, with its time and input.
    ///
    /// # Errors
    /// The address is taken or not this machine's, or two models have one name.
    pub async fn bind(
        address: SocketAddr,
        models: Vec<ModelSpec>,
        options: ServerOptions,
    ) -> Result<Server, ServerError> {
        let engine = EngineOptions { queue: options.queue, running: options.running };
        let room = Room { models: options.models_max, memory: options.memory };
        let models = Models::new(models, engine, room).map_err(ServerError::Options)?;
        let listen = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let app = App {
            loopback: address.ip().is_loopback(),
            models: Arc::new(models),
            metrics: Arc::default(),
            options,
        };
        Ok(Server { app: Arc::new(app), listener, address })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `stop` is done; what runs then has the options' grace to come to its end.
    ///
    /// # Errors
    /// The first model cannot be loaded, or the listener fails.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), ServerError> {
        let Server { app, listener, .. } = self;
        let (failed, mut failure) = tokio::sync::oneshot::channel();
        if app.options.load_at_start {
            let app = app.clone();
            tokio::spawn(async move {
                if let Err(e) = app.models.acquire(None).await {
                    // The receiver is gone where the server has ended before.
                    let _ = failed.send(e.message);
                }
            });
        }
        if let Some(after) = app.options.unload_after {
            let models = Arc::downgrade(&app.models);
            tokio::spawn(async move {
                while let Some(models) = models.upgrade() {
                    models.unload_idle(after);
                    drop(models);
                    tokio::time::sleep(SWEEP.min(after)).await;
                }
            });
        }
        let (stopping, stopped) = tokio::sync::watch::channel(false);
        let mut until = stopped.clone();
        let router = http::router(app.clone()).into_make_service_with_connect_info::<SocketAddr>();
        let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
            // An error means that the sender is gone, which ends the server too.
            let _ = until.wait_for(|stopped| *stopped).await;
        });
        let serving = tokio::spawn(async move { serving.await });
        tokio::pin!(stop);
        let loaded = tokio::select! {
            () = &mut stop => Ok(()),
            Ok(reason) = &mut failure => Err(ServerError::Load(reason)),
        };
        let _ = stopping.send(true);
        tracing::debug!("stopping");
        let grace = if loaded.is_err() { Duration::ZERO } else { app.options.grace };
        let mut serving = serving;
        match tokio::time::timeout(grace, &mut serving).await {
            Ok(Ok(result)) => result?,
            Ok(Err(e)) => tracing::error!("{e}"),
            Err(_) => {
                tracing::error!("answers were broken off, as the time for them was up");
                serving.abort();
            }
        }
        loaded
    }
}
