//! The configuration of PCP's Python PMDA, which has the path of this PMDA's: INI as Python's configparser reads it, with values
//! without quotes.

/// The keys that the Python PMDA has.
const KEYS: [&str; 2] = ["user", "telemetry_dir"];

/// An INI file, written as TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The settings in TOML, each on the line that it has in the INI file.
    pub toml: String,
    /// True if the Python PMDA has no other keys: otherwise the file is meant to be TOML.
    pub is_python: bool,
    /// Line and key of the first value that ends in a comment, which configparser takes for a part of the value.
    pub comment: Option<(usize, String)>,
}

impl Converted {
    /// The lines that say something.
    #[must_use]
    pub fn lines(&self) -> Vec<&str> {
        self.toml.lines().filter(|line| !line.is_empty()).collect()
    }
}

/// Writes an INI file as TOML. Returns `None` for a file of another form: with another section, or with a value in TOML's quotes
/// or brackets, so that a mistake in a TOML file is reported as such.
#[must_use]
pub fn convert(text: &str) -> Option<Converted> {
    let mut converted = Converted {
        toml: String::new(),
        is_python: true,
        comment: None,
    };
    let mut in_section = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line == "[nixl]" {
            in_section = true;
            converted.toml.push_str(line);
        } else if !line.is_empty() && !line.starts_with(['#', ';']) {
            let (key, value) = line.split_once(['=', ':']).filter(|_| in_section)?;
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            if value.is_empty() || value.starts_with(['"', '\'', '[', '{']) || !is_bare(&key) {
                return None;
            }
            let is_pythons = KEYS.contains(&key.as_str());
            let setting = format!("{key} = {value}");
            if !is_pythons && is_toml(&setting) {
                converted.toml.push_str(&setting);
            } else {
                converted.toml.push_str(&quoted(&key, value));
            }
            if is_pythons && converted.comment.is_none() && without_comment(value) != value {
                converted.comment = Some((at + 1, key));
            }
            converted.is_python &= is_pythons;
        }
        converted.toml.push('\n');
    }
    Some(converted)
}

/// True if a text is TOML, whatever it says.
pub(super) fn is_toml(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok()
}

/// A setting whose value is a TOML string.
pub(super) fn quoted(key: &str, value: &str) -> String {
    format!("{key} = {}", toml::Value::String(value.to_owned()))
}

/// The value without a comment behind it.
pub(super) fn without_comment(value: &str) -> &str {
    let begins = |at: usize| value[at..].trim_start().starts_with(['#', ';']);
    let comment = value
        .char_indices()
        .find(|&(at, letter)| letter.is_whitespace() && begins(at));
    comment.map_or(value, |(at, _)| &value[..at])
}

/// True if TOML takes a key without quotes.
pub(super) fn is_bare(key: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    !key.is_empty() && key.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lose_nothing_on_the_way() {
        let text = "[nixl]\ntelemetry_dir = /tmp/a \\ b#c;d\n";
        let converted = convert(text).expect("INI");
        let table: toml::Table = converted.toml.parse().expect("TOML");
        let path = table["nixl"]["telemetry_dir"].as_str();
        assert_eq!(path, Some("/tmp/a \\ b#c;d"));
        assert!(converted.is_python && converted.comment.is_none());
    }

    #[test]
    fn a_slip_in_a_toml_file_is_not_taken_for_ini() {
        for text in [
            "[nixl]\nuser = \"root\n",
            "user = root\n",
            "[other]\nuser = root\n",
            "[nixl]\nuser = root\na b = 5\n",
            "[nixl]\nuser = root\n\u{1b}c = 1\n",
        ] {
            assert_eq!(convert(text), None, "{text}");
        }
    }
}
