//! The models that a server offers: which are in memory, and how they get there and out again.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wootz::sample::SamplingParams;
use wootz::{Context, Engine, EngineOptions, Model};

use crate::constrain::Grammars;
use crate::error::{ApiError, Kind};

/// Why a model could not be loaded.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// Loads a model, on a thread where that may take its time; it is given the bytes that the model may take, if there is
/// a limit. Where it fails with the library's own error that memory is short, it is called again once another model has
/// left memory.
pub type Loader = Arc<dyn Fn(Option<u64>) -> Result<Context, LoadError> + Send + Sync>;

/// A model that a server offers.
#[derive(Clone)]
pub struct ModelSpec {
    /// The name that requests use.
    pub name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Where the model comes from, as users wrote it.
    pub source: String,
    /// The file, where it is known before the model is loaded.
    pub path: Option<PathBuf>,
    /// Brings it into memory.
    pub load: Loader,
    /// What requests get that do not say otherwise.
    pub preset: Preset,
}

/// Defaults of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preset {
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// A system message for conversations that have none.
    pub system: Option<String>,
    /// Tokens to generate at most; `None` for as many as fit the context.
    pub max_tokens: Option<usize>,
    /// Whether prompts that do not fit are cut where a request does not say.
    pub truncate: bool,
}

/// How much may be in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Models at most.
    pub(crate) models: usize,
    /// Bytes of all models at most.
    pub(crate) memory: Option<u64>,
}

/// A model in memory.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) engine: Engine,
    pub(crate) preset: Preset,
    /// Bytes of its weights and caches.
    memory: u64,
    grammars: OnceLock<Grammars>,
}

impl Loaded {
    pub(crate) fn model(&self) -> &Arc<Model> {
        self.engine.model()
    }

    /// What makes grammars for the model's vocabulary; built where it is first needed.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ApiError> {
        if let Some(grammars) = self.grammars.get() {
            return Ok(grammars);
        }
        let grammars = Grammars::new(self.model().tokenizer())?;
        Ok(self.grammars.get_or_init(|| grammars))
    }
}

enum State {
    Absent,
    Loaded { model: Arc<Loaded>, used: Instant },
    Failed(String),
}

struct Slot {
    spec: ModelSpec,
    /// Held while the model loads, so that it loads once.
    loading: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model, if it is in memory; it is then in use from now.
    fn get(&self) -> Option<Arc<Loaded>> {
        match &mut *self.state() {
            State::Loaded { model, used } => {
                *used = Instant::now();
                Some(model.clone())
            }
            _ => None,
        }
    }
}

/// What is known of a model without loading it.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) source: String,
    pub(crate) path: Option<PathBuf>,
    pub(crate) status: &'static str,
}

/// The models that a server offers.
pub(crate) struct Models {
    slots: Vec<Arc<Slot>>,
    names: HashMap<String, usize>,
    engine: EngineOptions,
    room: Room,
    /// Seconds since 1970 at which the server started.
    pub(crate) started: u64,
}

impl Models {
    pub(crate) fn new(specs: Vec<ModelSpec>, engine: EngineOptions, room: Room) -> Result<Models, String> {
        let mut names = HashMap::new();
        for (i, spec) in specs.iter().enumerate() {
            for name in std::iter::once(&spec.name).chain(&spec.aliases) {
                if names.insert(name.clone(), i).is_some_and(|other| other != i) {
                    return Err(format!("two models have the name {name:?}"));
                }
            }
        }
        let slot = |spec| {
            Arc::new(Slot { spec, loading: tokio::sync::Mutex::new(()), state: Mutex::new(State::Absent) })
        };
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Ok(Models {
            slots: specs.into_iter().map(slot).collect(),
            names,
            engine,
            room: Room { models: room.models.max(1), ..room },
            started,
        })
    }

    /// A model by name, loaded if need be; without a name, or where there is only one model, that.
    ///
    /// # Errors
    /// There is no such model, or it cannot be loaded.
    pub(crate) async fn acquire(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<Loaded>, ApiError> {
        let slot = self.slots[self.find(name)?].clone();
        if let Some(model) = slot.get() {
            return Ok(model);
        }
        // The load goes on where its request is given up: others may wait for it.
        let models = self.clone();
        let task = tokio::spawn(async move { models.load(&slot).await });
        task.await
            .unwrap_or_else(|e| Err(ApiError::new(Kind::Internal, format!("loading was broken off: {e}"))))
    }

    async fn load(&self, slot: &Arc<Slot>) -> Result<Arc<Loaded>, ApiError> {
        let _one = slot.loading.lock().await;
        if let Some(model) = slot.get() {
            return Ok(model);
        }
        let name = slot.spec.name.clone();
        self.make_room(&name).await?;
        loop {
            let (spec, options) = (slot.spec.clone(), self.engine);
            let taken: u64 = self.loaded().iter().map(|model| model.memory).sum();
            let memory = self.room.memory.map(|memory| memory.saturating_sub(taken));
            let load = move || -> Result<Loaded, LoadError> {
                let context = (spec.load)(memory)?;
                let memory = context.memory();
                let engine = Engine::start(context, options)?;
                Ok(Loaded {
                    name: spec.name,
                    engine,
                    preset: spec.preset,
                    memory: memory.weights + memory.caches,
                    grammars: OnceLock::new(),
                })
            };
            let result = tokio::task::spawn_blocking(load).await.unwrap_or_else(|e| Err(e.into()));
            let e = match result {
                Ok(model) => {
                    let model = Arc::new(model);
                    *slot.state() = State::Loaded { model: model.clone(), used: Instant::now() };
                    return Ok(model);
                }
                Err(e) => e,
            };
            // Where memory is short, models that nobody uses make room.
            let idle = if lacks_memory(&*e) { self.oldest_idle().1.cloned() } else { None };
            let Some(idle) = idle else {
                *slot.state() = State::Failed(e.to_string());
                let message = format!("the model {name:?} cannot be loaded: {e}");
                return Err(ApiError::new(Kind::Unavailable, message));
            };
            give_up(&idle).await;
        }
    }

    /// Gives up the models that were not used for longest, until one more may be in memory.
    async fn make_room(&self, name: &str) -> Result<(), ApiError> {
        loop {
            let (loaded, oldest) = self.oldest_idle();
            match oldest.cloned() {
                _ if loaded < self.room.models => return Ok(()),
                Some(slot) => give_up(&slot).await,
                None => {
                    let message =
                        format!("{loaded} models are in use, as many as may be loaded; {name:?} must wait");
                    return Err(ApiError::new(Kind::Unavailable, message));
                }
            }
        }
    }

    /// How many models are in memory, and which of them, that nobody uses, was used longest ago.
    fn oldest_idle(&self) -> (usize, Option<&Arc<Slot>>) {
        let mut loaded = 0;
        let mut oldest: Option<(Instant, &Arc<Slot>)> = None;
        for slot in &self.slots {
            if let State::Loaded { model, used } = &*slot.state() {
                loaded += 1;
                if Arc::strong_count(model) == 1 && oldest.is_none_or(|(time, _)| *used < time) {
                    oldest = Some((*used, slot));
                }
            }
        }
        (loaded, oldest.map(|(_, slot)| slot))
    }

    fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        match name.map(|name| (name, self.names.get(name))) {
            Some((_, Some(i))) => Ok(*i),
            // Clients often send the name of some other model that they were made for.
            _ if self.slots.len() == 1 => Ok(0),
            None if !self.slots.is_empty() => Ok(0),
            None => Err(ApiError::new(Kind::NotFound, "this server has no model")),
            Some((name, None)) => {
                let known: Vec<&str> = self.slots.iter().map(|s| s.spec.name.as_str()).collect();
                let message = format!("no model {name:?}; there are {}", known.join(", "));
                Err(ApiError { param: Some("model".into()), ..ApiError::new(Kind::NotFound, message) })
            }
        }
    }

    /// Whether a name is exactly that of a model.
    pub(crate) fn listing(&self, name: &str) -> Option<Listing> {
        self.names.get(name).map(|i| list(&self.slots[*i]))
    }

    pub(crate) fn list(&self) -> Vec<Listing> {
        self.slots.iter().map(|slot| list(slot)).collect()
    }

    /// The models in memory.
    pub(crate) fn loaded(&self) -> Vec<Arc<Loaded>> {
        let get = |slot: &Arc<Slot>| match &*slot.state() {
            State::Loaded { model, .. } => Some(model.clone()),
            _ => None,
        };
        self.slots.iter().filter_map(get).collect()
    }

    /// Why the last load failed, if every model that was asked for did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.slots.iter().find_map(|slot| match &*slot.state() {
            State::Failed(e) => Some(e.clone()),
            _ => None,
        })
    }

    /// Gives a model up, unless it is in use.
    ///
    /// # Errors
    /// There is no such model, or it is in use.
    pub(crate) fn unload(&self, name: &str) -> Result<(), ApiError> {
        let slot = &self.slots[self.find(Some(name))?];
        let busy = matches!(&*slot.state(), State::Loaded { model, .. } if Arc::strong_count(model) > 1);
        if busy {
            return Err(ApiError::new(Kind::Busy, format!("the model {name:?} is in use")));
        }
        tokio::spawn(give_up(slot));
        Ok(())
    }

    /// Gives up models that nobody has used for so long.
    pub(crate) fn unload_idle(&self, after: Duration) {
        for slot in &self.slots {
            let idle = matches!(
                &*slot.state(),
                State::Loaded { model, used } if Arc::strong_count(model) == 1 && used.elapsed() >= after
            );
            if idle {
                tokio::spawn(give_up(slot));
            }
        }
    }
}

/// Takes a model out of its slot at once; done when its engine has ended and its memory is free.
fn give_up(slot: &Slot) -> impl Future<Output = ()> + Send + use<> {
    let state = std::mem::replace(&mut *slot.state(), State::Absent);
    let ending = tokio::task::spawn_blocking(move || drop(state));
    async move {
        // An engine that panicked as it ended is gone all the same.
        let _ = ending.await;
    }
}

/// Whether a model could not be loaded for want of memory.
fn lacks_memory(e: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(e);
    while let Some(at) = cause {
        if let Some(wootz::Error::ContextMemory { .. }) = at.downcast_ref() {
            return true;
        }
        cause = at.source();
    }
    false
}

fn list(slot: &Slot) -> Listing {
    let status = match &*slot.state() {
        State::Loaded { .. } => "loaded",
        State::Failed(_) => "failed",
        State::Absent if slot.loading.try_lock().is_err() => "loading",
        State::Absent => "unloaded",
    };
    let ModelSpec { name, aliases, source, path, .. } = &slot.spec;
    Listing {
        name: name.clone(),
        aliases: aliases.clone(),
        source: source.clone(),
        path: path.clone(),
        status,
    }
}
