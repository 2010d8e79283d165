//! Signatures of kernels, read from their source: what is bound where, and how it may be accessed.

use crate::error::MetalError;

/// What a kernel may do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A struct in `constant` memory.
    Constant,
    /// `device const`.
    Read,
    /// `device`.
    Write,
}

/// One buffer of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in the source.
    pub name: String,
    /// Index it is bound at.
    pub index: u32,
    /// Access.
    pub access: Access,
    /// Type as written, without address space, `const` and `*` or `&`.
    pub ty: String,
}

/// A value that the GPU gives each thread, such as its position in the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Type: `uint`, `uint2` or `uint3`.
    pub ty: String,
    /// Attribute, such as `thread_index_in_simdgroup`.
    pub attribute: String,
}

/// An argument of a kernel, in the order of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A buffer.
    Buffer(Parameter),
    /// A value of the thread.
    Builtin(Builtin),
}

/// A kernel's name and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name.
    pub name: String,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
}

impl Signature {
    /// The kernel's buffers.
    pub fn buffers(&self) -> impl Iterator<Item = &Parameter> {
        self.arguments.iter().filter_map(|a| match a {
            Argument::Buffer(p) => Some(p),
            Argument::Builtin(_) => None,
        })
    }

    /// A buffer by name.
    pub fn buffer(&self, name: &str) -> Option<&Parameter> {
        self.buffers().find(|p| p.name == name)
    }
}

/// A function constant: `FUNCTION_CONSTANT(type, name, index)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Type: `bool` or `uint`.
    pub ty: String,
    /// Name.
    pub name: String,
    /// Index.
    pub index: u32,
}

/// The kernels of a source text without preprocessor includes.
///
/// # Errors
/// A kernel's arguments are not written in the dialect.
pub fn kernels(source: &str) -> Result<Vec<Signature>, MetalError> {
    let text = without_comments(source);
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("kernel void ") {
        rest = &rest[at + "kernel void ".len()..];
        let bad = |reason: &str| MetalError::Kernel {
            kernel: rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect(),
            reason: reason.to_owned(),
        };
        let open = rest.find('(').ok_or_else(|| bad("no arguments"))?;
        let name = rest[..open].trim().to_owned();
        let close = closing(&rest[open..]).ok_or_else(|| bad("arguments do not end"))? + open;
        let list = &rest[open + 1..close];
        let arguments = split_arguments(list).map(|a| argument(&name, a)).collect::<Result<_, _>>()?;
        found.push(Signature { name, arguments });
        rest = &rest[close..];
    }
    Ok(found)
}

/// The function constants of a source text.
///
/// # Errors
/// A constant's index is no number.
pub fn constants(source: &str) -> Result<Vec<Constant>, MetalError> {
    let text = without_comments(source);
    let mut found = Vec::new();
    for line in text.lines().filter(|l| l.starts_with("FUNCTION_CONSTANT(")) {
        let inner = line.trim_start_matches("FUNCTION_CONSTANT(").trim_end_matches([';', ')']);
        let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
        let [ty, name, index] = parts[..] else { continue };
        let index = index.parse().map_err(|_| MetalError::Kernel {
            kernel: name.to_owned(),
            reason: format!("{index} is no index of a constant"),
        })?;
        found.push(Constant { ty: ty.to_owned(), name: name.to_owned(), index });
    }
    Ok(found)
}

fn without_comments(source: &str) -> String {
    source.lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Place of the parenthesis that closes the one at the start.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn split_arguments(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|a| !a.is_empty())
}

/// One argument, such as `device const float* x [[buffer(1)]]`.
fn argument(kernel: &str, text: &str) -> Result<Argument, MetalError> {
    let bad = |reason: String| MetalError::Kernel {
        kernel: kernel.to_owned(),
        reason: format!("{text}: {reason}"),
    };
    let (declaration, attribute) =
        text.split_once("[[").ok_or_else(|| bad("an argument without an attribute".into()))?;
    let attribute = attribute.trim_end_matches("]]").trim();
    let words: Vec<&str> = declaration.split_whitespace().collect();
    let Some((name, ty)) = words.split_last() else { return Err(bad("no name".into())) };
    let Some(index) = attribute.strip_prefix("buffer(").and_then(|a| a.strip_suffix(')')) else {
        let [ty] = ty else { return Err(bad("a value has a plain type".into())) };
        return Ok(Argument::Builtin(Builtin { ty: (*ty).to_owned(), attribute: attribute.to_owned() }));
    };
    let index = index.parse().map_err(|_| bad(format!("{index} is no index")))?;
    let (access, ty) = match ty {
        ["constant", ty] if ty.ends_with('&') => (Access::Constant, ty.trim_end_matches('&')),
        ["device", "const", ty] if ty.ends_with('*') => (Access::Read, ty.trim_end_matches('*')),
        ["device", ty] if ty.ends_with('*') => (Access::Write, ty.trim_end_matches('*')),
        _ => return Err(bad("neither `constant T&`, `device const T*` nor `device T*`".into())),
    };
    Ok(Argument::Buffer(Parameter { name: (*name).to_owned(), index, access, ty: ty.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "FUNCTION_CONSTANT(bool, causal, 2);\n\
        kernel void f(constant Args& args [[buffer(0)]], // comment, with a comma\n\
        device const float* x [[buffer(1)]], device uchar* y [[buffer(3)]], uint2 at [[thread_position_in_grid]]) {}";

    #[test]
    fn a_signature_is_read() {
        let [f] = &kernels(SOURCE).unwrap()[..] else { panic!("one kernel") };
        assert_eq!(f.name, "f");
        let found: Vec<_> =
            f.buffers().map(|p| (p.name.as_str(), p.index, p.access, p.ty.as_str())).collect();
        let expected = [
            ("args", 0, Access::Constant, "Args"),
            ("x", 1, Access::Read, "float"),
            ("y", 3, Access::Write, "uchar"),
        ];
        assert_eq!(found, expected);
        let at = Builtin { ty: "uint2".into(), attribute: "thread_position_in_grid".into() };
        assert_eq!(f.arguments[3], Argument::Builtin(at));
        assert_eq!(
            constants(SOURCE).unwrap(),
            [Constant { ty: "bool".into(), name: "causal".into(), index: 2 }]
        );
    }

    #[test]
    fn arguments_outside_the_dialect_are_refused() {
        for wrong in ["float* x [[buffer(0)]]", "device float* x", "device float* x [[buffer(a)]]"] {
            let source = format!("kernel void f({wrong}) {{}}");
            assert!(kernels(&source).is_err(), "{wrong}");
        }
    }
}
