//! Names of the formats that people take for GGUF.

/// The format that a file starting with these bytes probably has.
pub(crate) fn guess(start: &[u8]) -> Option<&'static str> {
    const STARTS: &[(&[u8], &str)] = &[
        (b"PK\x03\x04", "a ZIP archive, such as a PyTorch checkpoint"),
        (b"PK\x05\x06", "an empty ZIP archive"),
        (b"tjgg", "an old GGJT model of 2023, convert it again"),
        (b"fmgg", "an old GGMF model of 2023, convert it again"),
        (b"lmgg", "an old GGML model of 2023, convert it again"),
        (b"algg", "an old GGLA adapter, convert it again"),
        (b"FUGG", "a GGUF file in reversed byte order"),
        (b"version https://git-lfs", "a Git LFS pointer, fetch the file itself with `git lfs pull`"),
        (b"\x1f\x8b", "gzip, unpack it first"),
        (b"\x28\xb5\x2f\xfd", "Zstandard, unpack it first"),
        (b"\xfd7zXZ\0", "xz, unpack it first"),
        (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
        (b"BZh", "bzip2, unpack it first"),
        (b"\x89HDF\r\n", "an HDF5 file, such as a Keras model"),
        (b"\x93NUMPY", "a NumPy array"),
        (b"\x7fELF", "a program"),
        (b"MZ", "a Windows program"),
        (b"%PDF", "a PDF document"),
        (b"\x89PNG", "a picture"),
    ];
    if let Some((_, name)) = STARTS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Some(name);
    }
    if is_safetensors(start) {
        return Some("a safetensors file, convert it to GGUF");
    }
    // A pickle opens with PROTO and a version from 2 to 5.
    if matches!(start, [0x80, 2..=5, ..]) {
        return Some("a Python pickle, such as an old PyTorch checkpoint");
    }
    if start.get(257..262) == Some(b"ustar") {
        return Some("a tar archive");
    }
    if start.get(4..8) == Some(b"TFL3") {
        return Some("a TensorFlow Lite model");
    }
    let text = start.trim_ascii_start();
    let begins = |tag: &[u8]| text.get(..tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag));
    if begins(b"<!doctype") || begins(b"<html") || begins(b"<?xml") {
        return Some("a web page, so the download went wrong");
    }
    if begins(b"{") || begins(b"[") {
        return Some("JSON");
    }
    if start.len() >= 8 && start.iter().all(|&byte| byte == 0) {
        return Some("only zeros, so the download is incomplete");
    }
    None
}

/// Safetensors: the length of a JSON object in eight bytes, then the object.
fn is_safetensors(start: &[u8]) -> bool {
    let Some((length, rest)) = start.split_first_chunk::<8>() else { return false };
    (2..1 << 30).contains(&u64::from_le_bytes(*length)) && rest.first() == Some(&b'{')
}

#[cfg(test)]
mod tests {
    use super::guess;

    #[test]
    fn formats_are_named() {
        let mut safetensors = 40u64.to_le_bytes().to_vec();
        safetensors.extend_from_slice(b"{\"__metadata__\"");
        let mut tar = vec![b'a'; 257];
        tar.extend_from_slice(b"ustar\0");
        let cases: &[(&[u8], &str)] = &[
            (b"PK\x03\x04\0\0", "PyTorch"),
            (&safetensors, "safetensors"),
            (&tar, "tar"),
            (b"\x80\x02}q", "pickle"),
            (b"\n <!DOCTYPE html>", "web page"),
            (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
            (b"tjgg\x03\0\0\0", "GGJT"),
            (b"{\"a\":1}", "JSON"),
            (&[0; 16], "zeros"),
        ];
        for (bytes, expected) in cases {
            let name = guess(bytes).unwrap_or_else(|| panic!("{expected} not recognised"));
            assert!(name.contains(expected), "{name} for {expected}");
        }
        assert_eq!(guess(b"abcd"), None);
        assert_eq!(guess(b""), None);
    }
}
