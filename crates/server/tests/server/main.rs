//! The server over real connections, with a tiny model of random weights.

mod chat;
mod embeddings;
mod http;
mod limits;
mod load;
mod log;
mod models;
mod overflow;
mod place;
mod protocols;
mod shapes;
