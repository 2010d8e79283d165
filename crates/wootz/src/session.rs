//! The computed state of a sequence in a file.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use wootz_gguf::AtomicFile;

use crate::context::Context;
use crate::error::Error;
use crate::kv::BlockCopy;

/// First bytes of a state file.
const MAGIC: &[u8; 8] = b"wootzkv1";

impl Context {
    /// Writes what the cache holds of `tokens` to a file; returns how many tokens that is.
    ///
    /// The file is whole or not there. It can be read on the same kind of device, with the same model and cache types.
    ///
    /// # Errors
    /// The file cannot be written, or the device fails.
    pub fn save(&mut self, tokens: &[u32], path: &Path) -> Result<usize, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let (sequence, cached) = self.open_prefix(tokens)?;
        let result = (|| {
            let mut file = AtomicFile::create(path)?;
            let mut out = BufWriter::new(&mut file);
            out.write_all(MAGIC).map_err(io)?;
            let head = self.fingerprint();
            out.write_all(&(head.len() as u32).to_le_bytes()).map_err(io)?;
            out.write_all(head.as_bytes()).map_err(io)?;
            out.write_all(&(cached as u32).to_le_bytes()).map_err(io)?;
            for token in &tokens[..cached] {
                out.write_all(&token.to_le_bytes()).map_err(io)?;
            }
            let (kv, runner, layout) = self.parts_of_state();
            let mut bytes = Vec::new();
            for group in 0..layout.groups.len() {
                let table = kv.table(sequence, group)?;
                out.write_all(&(table.first as u32).to_le_bytes()).map_err(io)?;
                out.write_all(&(table.blocks.len() as u32).to_le_bytes()).map_err(io)?;
                for block in table.blocks {
                    bytes.clear();
                    runner.read_block(group as u32, *block, &mut bytes)?;
                    out.write_all(&(bytes.len() as u64).to_le_bytes()).map_err(io)?;
                    out.write_all(&bytes).map_err(io)?;
                }
            }
            out.flush().map_err(io)?;
            drop(out);
            file.commit()?;
            Ok(cached)
        })();
        self.close(sequence);
        result
    }

    /// Reads a file that [`save`](Self::save) wrote into the cache, where requests find it; returns its tokens' number.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or was written with another model, device or cache type.
    pub fn restore(&mut self, path: &Path) -> Result<usize, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let mut file = BufReader::new(File::open(path).map_err(io)?);
        let mut magic = [0; 8];
        file.read_exact(&mut magic).map_err(io)?;
        if magic != *MAGIC {
            return Err(Error::State(format!("{} is no state file", path.display())));
        }
        let number = |file: &mut BufReader<File>| -> Result<u32, Error> {
            let mut bytes = [0; 4];
            file.read_exact(&mut bytes).map_err(io)?;
            Ok(u32::from_le_bytes(bytes))
        };
        let expected = self.fingerprint();
        let n = number(&mut file)? as usize;
        let mut head = vec![0; n.min(expected.len() + 1)];
        file.read_exact(&mut head).map_err(io)?;
        if head != expected.as_bytes() {
            let found = String::from_utf8_lossy(&head).into_owned();
            return Err(Error::State(format!("it was written for {found}, this is {expected}")));
        }
        let count = number(&mut file)? as usize;
        if count > self.limits().context {
            return Err(Error::State(format!("{count} tokens, the context has {}", self.limits().context)));
        }
        let vocab = self.model().arch().hparams().vocab;
        let mut tokens = Vec::with_capacity(count);
        for _ in 0..count {
            let token = number(&mut file)?;
            if token >= vocab {
                return Err(Error::BadToken { token, vocab });
            }
            tokens.push(token);
        }
        let (sequence, cached) = self.open_prefix(&tokens)?;
        let result = self.read_blocks(&mut file, path, sequence, &tokens[cached..]);
        self.close(sequence);
        result.map(|()| count)
    }

    /// Appends tokens whose blocks come from a file.
    fn read_blocks(
        &mut self,
        file: &mut BufReader<File>,
        path: &Path,
        sequence: crate::context::SequenceId,
        tokens: &[u32],
    ) -> Result<(), Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        if tokens.is_empty() {
            return Ok(());
        }
        let start = self.len(sequence);
        let (kv, runner, layout) = self.parts_of_state();
        kv.append(sequence, tokens)?;
        for BlockCopy { group, src, dst } in kv.take_copies() {
            runner.copy_blocks(group as u32, &[(src, dst)])?;
        }
        let groups = layout.groups.len();
        let result = (|| {
            let mut firsts = Vec::with_capacity(groups);
            for group in 0..groups {
                let mut word = [0; 4];
                file.read_exact(&mut word).map_err(io)?;
                let first = u32::from_le_bytes(word) as usize;
                file.read_exact(&mut word).map_err(io)?;
                let blocks = u32::from_le_bytes(word) as usize;
                firsts.push(first);
                let table = kv.table(sequence, group)?;
                let own: Vec<u32> = table.blocks.to_vec();
                for index in first..first.saturating_add(blocks) {
                    let mut length = [0; 8];
                    file.read_exact(&mut length).map_err(io)?;
                    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
                    let expected = runner.block_bytes(group as u32)?;
                    if length != expected {
                        return Err(Error::State(format!(
                            "a block has {expected} bytes, the file says {length}"
                        )));
                    }
                    let mut bytes = vec![0; length];
                    file.read_exact(&mut bytes).map_err(io)?;
                    // Blocks that were cached already stay as they are: others may share them.
                    let wanted = index >= start / wootz_graph::BLOCK_TOKENS;
                    if let Some(block) =
                        index.checked_sub(table.first).and_then(|i| own.get(i)).filter(|_| wanted)
                    {
                        runner.write_block(group as u32, *block, &bytes)?;
                    }
                }
            }
            Ok(firsts)
        })();
        match result {
            Ok(firsts) => {
                // Blocks that the file does not have hold nothing that may be found.
                for (group, first) in firsts.into_iter().enumerate() {
                    kv.drop_blocks(sequence, group, first)?;
                }
                Ok(kv.commit(sequence)?)
            }
            Err(e) => {
                kv.retract(sequence, start)?;
                Err(e)
            }
        }
    }

    /// What a state depends on.
    fn fingerprint(&self) -> String {
        let model = self.model();
        let hp = model.arch().hparams();
        format!(
            "{} {} layers {} wide, {} bytes, caches {:?}, device {}",
            hp.prefix,
            hp.layers,
            hp.dim,
            model.file().data_bytes(),
            self.kv_bits(),
            self.device().id
        )
    }
}
