//! Known families of templates: their names, our own minimal templates, and how to tell them.

use super::{ChatTemplate, TemplateError};

/// Defines the families: variant, name, and our own template for it where there is one.
macro_rules! families {
    ($($variant:ident $name:literal $($file:literal)?, $doc:literal;)*) => {
        /// A family of chat templates.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum TemplateKind {
            $(#[doc = $doc] $variant,)*
        }

        impl TemplateKind {
            /// All families.
            pub const ALL: &[TemplateKind] = &[$(TemplateKind::$variant),*];

            /// The family's name, as `--chat-template` takes it.
            pub fn name(self) -> &'static str {
                match self { $(TemplateKind::$variant => $name,)* }
            }

            /// Source of our own template for plain conversations in this family, if there is one.
            pub fn builtin(self) -> Option<&'static str> {
                match self {
                    $(TemplateKind::$variant => families!(@source $($file)?),)*
                }
            }
        }
    };
    (@source $file:literal) => { Some(include_str!(concat!("../../templates/", $file, ".jinja"))) };
    (@source) => { None };
}

families! {
    ChatMl "chatml" "chatml", "ChatML (`<|im_start|>`), without tools.";
    Hermes "hermes", "ChatML with JSON calls in `<tool_call>` (Qwen 2.5, Qwen 3, Hermes).";
    QwenCoder "qwen3-coder", "ChatML with XML calls in `<tool_call>` (Qwen3-Coder, Qwen 3.5).";
    Phi4 "phi4" "phi4", "Phi-4 (`<|im_sep|>`).";
    Phi3 "phi3" "phi3", "Phi-3 (`<|end|>`).";
    Zephyr "zephyr" "zephyr", "Zephyr (role tags and the end token).";
    Llama2 "llama2" "llama2", "Llama 2 (`[INST]` with `<<SYS>>`).";
    Llama3 "llama3" "llama3", "Llama 3 (`<|start_header_id|>`).";
    FunctionaryV31 "functionary-v3.1", "Functionary 3.1 (`<function=name>` on Llama 3 headers).";
    FunctionaryV32 "functionary-v3.2", "Functionary 3.2 (`>>>name` on Llama 3 headers).";
    MistralV1 "mistral-v1" "mistral-v1", "Mistral 7B Instruct 0.1 and 0.2.";
    MistralV3 "mistral-v3" "mistral-v3", "Mistral 7B Instruct 0.3.";
    MistralV3Tekken "mistral-v3-tekken" "mistral-v3-tekken", "Mistral Nemo.";
    MistralV7 "mistral-v7" "mistral-v7", "Mistral Large 2411 (`[SYSTEM_PROMPT]`).";
    MistralV7Tekken "mistral-v7-tekken" "mistral-v7-tekken", "Mistral Small 3 and later.";
    Gemma "gemma" "gemma", "Gemma 1 to 3 (`<start_of_turn>`).";
    Gemma4 "gemma4", "Gemma 4 (`<|turn>`).";
    DeepSeek2 "deepseek2" "deepseek2", "DeepSeek V2 (`User:` and `Assistant:`).";
    DeepSeek3 "deepseek3" "deepseek3", "DeepSeek V3 and R1 (`<｜User｜>`).";
    CommandR "command-r" "command-r", "Command R (`<|START_OF_TURN_TOKEN|>`).";
    Granite "granite" "granite", "Granite 3 and 4 (`<|start_of_role|>`).";
    Glm4 "glm4" "glm4", "GLM 4 (`[gMASK]<sop>`).";
    KimiK2 "kimi-k2" "kimi-k2", "Kimi K2 (`<|im_middle|>`).";
    GptOss "gpt-oss" "gpt-oss", "gpt-oss (harmony channels).";
    SeedOss "seed-oss", "Seed-OSS (`<seed:bos>` and `<seed:tool_call>`).";
    MiniMax "minimax-m2", "MiniMax M2 (`]~b]`).";
    Lfm2 "lfm2", "LFM2 (ChatML with Python calls).";
    Vicuna "vicuna" "vicuna", "Vicuna (`USER:` and `ASSISTANT:`).";
    RwkvWorld "rwkv-world" "rwkv-world", "RWKV (`User:` and `Assistant:`, each turn up to an empty line).";
}

impl TemplateKind {
    /// Guesses the family from a template's source: the first family whose marks it holds.
    pub fn detect(source: &str) -> Option<Self> {
        use TemplateKind::*;
        let marks: &[(&[&str], TemplateKind)] = &[
            (&["<|channel|>", "<|start|>"], GptOss),
            (&["<|im_middle|>"], KimiK2),
            (&["<|turn>"], Gemma4),
            (&["<start_of_turn>"], Gemma),
            (&["<｜User｜>"], DeepSeek3),
            (&["<｜Assistant｜>"], DeepSeek3),
            (&["seed:"], SeedOss),
            (&["]~b]"], MiniMax),
            (&["[gMASK]"], Glm4),
            (&["<|START_OF_TURN_TOKEN|>"], CommandR),
            (&["<|start_of_role|>"], Granite),
            (&["<|start_header_id|>", ">>>all"], FunctionaryV32),
            (&["<|start_header_id|>", "<function="], FunctionaryV31),
            (&["<|start_header_id|>"], Llama3),
            (&["<|im_sep|>"], Phi4),
            (&["<|tool_call_start|>"], Lfm2),
            (&["<|im_start|>", "<function="], QwenCoder),
            (&["<|im_start|>", "<tool_call>"], Hermes),
            (&["<|im_start|>"], ChatMl),
            (&["[SYSTEM_PROMPT] "], MistralV7),
            (&["[SYSTEM_PROMPT]"], MistralV7Tekken),
            (&["[INST]", "<<SYS>>"], Llama2),
            (&["[INST] ", "' [/INST]"], MistralV1),
            (&["[INST] "], MistralV3),
            (&["[INST]"], MistralV3Tekken),
            (&["<|assistant|>", "<|end|>"], Phi3),
            (&["<|assistant|>"], Zephyr),
            (&["ASSISTANT:"], Vicuna),
            (&["System: ", "Assistant:"], RwkvWorld),
            (&["Assistant:"], DeepSeek2),
        ];
        let held = |marks: &[&str]| marks.iter().all(|mark| source.contains(mark));
        marks.iter().find(|(marks, _)| held(marks)).map(|&(_, kind)| kind)
    }

    /// The family with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl std::fmt::Display for TemplateKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl ChatTemplate {
    /// One of our own templates, by name; `chatml` is the one for models that have none.
    ///
    /// # Errors
    /// There is no such template; the error lists those there are.
    pub fn builtin(name: &str) -> Result<Self, TemplateError> {
        match TemplateKind::from_name(name).and_then(TemplateKind::builtin) {
            Some(source) => Self::new(source),
            None => {
                let all = TemplateKind::ALL.iter().filter(|kind| kind.builtin().is_some());
                let known = all.map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
                Err(TemplateError::UnknownBuiltin { name: name.to_owned(), known })
            }
        }
    }

    /// The family that the template seems to belong to.
    pub fn kind(&self) -> Option<TemplateKind> {
        TemplateKind::detect(self.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_is_told_from_the_others() {
        for kind in TemplateKind::ALL {
            assert_eq!(TemplateKind::from_name(kind.name()), Some(*kind));
            if let Some(source) = kind.builtin() {
                assert_eq!(TemplateKind::detect(source), Some(*kind), "{kind}");
                assert!(ChatTemplate::builtin(kind.name()).is_ok(), "{kind}");
            }
        }
        assert_eq!(TemplateKind::detect("{{ messages }}"), None);
        let error = ChatTemplate::builtin("nonesuch").unwrap_err().to_string();
        assert!(error.contains("nonesuch") && error.contains("chatml, phi4"), "{error}");
    }
}
