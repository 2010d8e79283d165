//! Arguments of kernels. Each struct is described once, here; the C header `kernels/args.h` is printed from it.

mod fast;
mod simple;

use std::marker::PhantomData;

pub(crate) use fast::*;
pub(crate) use simple::*;

/// A type that both sides lay out alike.
#[cfg(test)]
pub(crate) trait CType: Copy + 'static {
    /// The C declaration of a field of this type.
    fn declare(field: &str) -> String;
}

#[cfg(test)]
macro_rules! plain {
    ($($rust:ty: $c:literal,)*) => {
        $(impl CType for $rust {
            fn declare(field: &str) -> String {
                format!("{} {field}", $c)
            }
        })*
    };
}

#[cfg(test)]
plain! {
    u8: "uint8_t",
    u16: "uint16_t",
    u32: "uint32_t",
    i32: "int32_t",
    u64: "uint64_t",
    f32: "float",
    f64: "double",
}

#[cfg(test)]
impl<T: CType, const N: usize> CType for [T; N] {
    fn declare(field: &str) -> String {
        format!("{}[{N}]", T::declare(field))
    }
}

macro_rules! pointers {
    ($($(#[doc = $doc:literal])* $name:ident: $qualifier:literal,)*) => {
        $(
            $(#[doc = $doc])*
            #[repr(transparent)]
            #[derive(Debug)]
            pub(crate) struct $name<T>(u64, PhantomData<T>);

            impl<T> $name<T> {
                pub(crate) const NULL: $name<T> = $name::new(0);

                pub(crate) const fn new(address: u64) -> $name<T> {
                    $name(address, PhantomData)
                }
            }

            impl<T> Clone for $name<T> {
                fn clone(&self) -> $name<T> {
                    *self
                }
            }

            impl<T> Copy for $name<T> {}

            #[cfg(test)]
            impl<T: CType> CType for $name<T> {
                fn declare(field: &str) -> String {
                    let pointee = T::declare("");
                    format!("{}{}* {field}", $qualifier, pointee.trim_end())
                }
            }
        )*
    };
}

pointers! {
    /// An address on the device of values that a kernel reads; 0 for none.
    Ptr: "const ",
    /// An address on the device of values that a kernel writes; 0 for none.
    Mut: "",
}

impl<T> Ptr<T> {
    /// The same address, of values of another type.
    pub(crate) const fn cast<U>(self) -> Ptr<U> {
        Ptr::new(self.0)
    }
}

impl<T> Mut<T> {
    pub(crate) const fn address(self) -> u64 {
        self.0
    }
}

/// Arguments of a kernel, as bytes.
pub(crate) trait Args: Copy + 'static {
    /// The bytes that a kernel receives.
    fn bytes(&self) -> &[u8];
}

/// Describes argument structs: layout in Rust, and their C definitions.
macro_rules! args {
    ($($(#[doc = $doc:literal])* $name:ident {
        $($(#[doc = $about:literal])* $field:ident: $ty:ty,)*
    })*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub(crate) struct $name {
                $($(#[doc = $about])* pub(crate) $field: $ty,)*
            }

            // Every byte of the struct is one of a field, so that it can be copied as bytes.
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$ty>())*, "a struct with holes");

            impl crate::args::Args for $name {
                fn bytes(&self) -> &[u8] {
                    // SAFETY: the struct has no padding (asserted above) and is made of plain numbers.
                    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<$name>()) }
                }
            }

            #[cfg(test)]
            impl crate::args::CType for $name {
                fn declare(field: &str) -> String {
                    format!("{} {field}", stringify!($name))
                }
            }

            #[cfg(test)]
            impl $name {
                /// The C definition.
                fn definition() -> String {
                    let fields: &[(String, &[&str])] = &[$((
                        <$ty as crate::args::CType>::declare(stringify!($field).trim_start_matches("r#")),
                        &[$($about),*],
                    ),)*];
                    crate::args::define(stringify!($name), &[$($doc),*], fields, size_of::<$name>())
                }
            }
        )*

        /// The C definitions, in order.
        #[cfg(test)]
        pub(super) fn definitions() -> Vec<String> {
            vec![$($name::definition()),*]
        }
    };
}
pub(crate) use args;

/// The C definition of a struct with its comments.
#[cfg(test)]
fn define(name: &str, about: &[&str], fields: &[(String, &[&str])], bytes: usize) -> String {
    let mut text: String = about.iter().map(|line| format!("//{line}\n")).collect();
    text.push_str(&format!("struct {name} {{\n"));
    for (field, about) in fields {
        about.iter().for_each(|line| text.push_str(&format!("    //{line}\n")));
        text.push_str(&format!("    {field};\n"));
    }
    text.push_str(&format!("}};\nstatic_assert(sizeof({name}) == {bytes}, \"{name}\");\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_those_of_c() {
        assert_eq!(u32::declare("n"), "uint32_t n");
        assert_eq!(Ptr::<f32>::declare("x"), "const float* x");
        assert_eq!(Mut::<u8>::declare("out"), "uint8_t* out");
        assert_eq!(<[Segment; 3]>::declare("seg"), "Segment seg[3]");
    }

    /// After a change of the structs, run with `WOOTZ_UPDATE_SNAPSHOTS=1`.
    #[test]
    fn the_header_is_that_of_the_structs() {
        let mut text = String::from(
            "// Arguments of kernels, written by the tests of src/args; do not edit by hand.\n\
             #pragma once\n#include <stdint.h>\n",
        );
        for definition in simple::definitions().into_iter().chain(fast::definitions()) {
            text.push('\n');
            text.push_str(&definition);
        }
        crate::testing::compare_with_file("kernels/args.h", &text);
    }
}
