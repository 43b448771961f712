//! The configuration of PCP's Python PMDA, which has the same path as ours: INI as Python's configparser reads it, values
//! without quotes.

/// Keys that the Python PMDA never had: a file with one of them is meant to be TOML.
const OUR_KEYS: [&str; 8] = [
    "drain_interval",
    "retain",
    "remember",
    "max_agents",
    "max_capacity",
    "max_directories",
    "owners",
    "observe",
];

/// An INI file, said in TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The same settings; each stands on the line that it had.
    pub toml: String,
    /// Line and name of keys that the Python PMDA does not know either.
    pub ignored: Vec<(usize, String)>,
}

impl Converted {
    /// The lines that say something.
    #[must_use]
    pub fn lines(&self) -> Vec<&str> {
        self.toml.lines().filter(|line| !line.is_empty()).collect()
    }
}

/// Says an INI file in TOML; `None` if it is not the Python PMDA's file: another section, or a value that is written as TOML
/// wants it, so that a slip in a TOML file is reported as such.
#[must_use]
pub fn convert(text: &str) -> Option<Converted> {
    let mut toml = String::new();
    let mut ignored = Vec::new();
    let mut in_section = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line == "[nixl]" {
            in_section = true;
            toml.push_str(line);
        } else if !line.is_empty() && !line.starts_with(['#', ';']) {
            let (key, value) = line.split_once(['=', ':']).filter(|_| in_section)?;
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            let quoted = value.starts_with(['"', '\'', '[', '{']);
            if value.is_empty() || quoted || OUR_KEYS.contains(&key.as_str()) {
                return None;
            }
            if key == "user" || key == "telemetry_dir" {
                toml.push_str(&format!(
                    "{key} = {}",
                    toml::Value::String(value.to_owned())
                ));
            } else {
                ignored.push((at + 1, key));
            }
        }
        toml.push('\n');
    }
    Some(Converted { toml, ignored })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lose_nothing_on_the_way() {
        let converted = convert("[nixl]\ntelemetry_dir = /tmp/a \\ b\n").expect("INI");
        let table: toml::Table = converted.toml.parse().expect("TOML");
        assert_eq!(table["nixl"]["telemetry_dir"].as_str(), Some("/tmp/a \\ b"));
    }

    #[test]
    fn a_slip_in_a_toml_file_is_not_taken_for_ini() {
        for text in [
            "[nixl]\nuser = \"root\n",
            "user = root\n",
            "[nixl]\nretain = 5min\n",
            "[other]\nuser = root\n",
        ] {
            assert_eq!(convert(text), None, "{text}");
        }
    }
}
