//! Lists the Metal devices of this machine and measures them: a small program with all of the backend in it.

use std::error::Error;
use std::sync::Arc;

use wootz_graph::Backend;
use wootz_metal::{MetalBackend, MetalOptions, Source};

#[cfg(target_os = "macos")]
fn source() -> Arc<dyn Source> {
    Arc::new(wootz_metal::apple::AppleDevices::from_environment())
}

#[cfg(not(target_os = "macos"))]
fn source() -> Arc<dyn Source> {
    Arc::new(wootz_metal::NoDevices)
}

fn main() -> Result<(), Box<dyn Error>> {
    let backend = MetalBackend::new("metal", MetalOptions::from_environment(), source());
    for (index, info) in backend.devices()?.into_iter().enumerate() {
        let limits = backend.open(index)?.limits()?;
        let (read, products) = (limits.bytes_per_second / 1e9, limits.ops_per_second / 1e12);
        println!("{} {}: reads {read:.1} GB/s, products at {products:.2} TFLOPS", info.id, info.name);
    }
    Ok(())
}
