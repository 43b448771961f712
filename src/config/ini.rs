// SPDX-License-Identifier: GPL-2.0-or-later

//! Configuration of PCP's Python PMDA, which is at the path of this PMDA's configuration. It has the INI format of
//! Python's configparser, with values without quotes.

use super::file::TYPOGRAPHIC;

/// Keys of the Python PMDA.
const KEYS: [&str; 2] = ["user", "telemetry_dir"];

/// Converts an INI file of the Python PMDA to TOML, with each setting on its line. Returns `None` for any other file:
/// without a setting, with another key or section, or with a value that is a number or in quotes or brackets.
/// Then a mistake in a TOML file is reported as such.
///
/// configparser takes a comment behind a value as part of the value, and a carriage return as the end of a line. For
/// files with these the result is `None` too, since TOML has an error for each.
#[must_use]
pub fn convert(text: &str) -> Option<String> {
    let (mut toml, mut in_section, mut has_settings) = (String::new(), false, false);
    for line in text.lines() {
        let line = line.trim();
        if line.contains('\r') {
            return None;
        }
        if line == "[nixl]" {
            in_section = true;
            toml.push_str(line);
        } else if !line.is_empty() && !line.starts_with(['#', ';']) {
            let (key, value) = line.split_once(['=', ':'])?;
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            let has_comment = value
                .split_whitespace()
                .any(|word| word.starts_with(['#', ';']));
            let is_toml = value.is_empty()
                || value.starts_with(['"', '\'', '[', '{'])
                || value.starts_with(TYPOGRAPHIC)
                || value.parse::<i64>().is_ok();
            if !in_section || !KEYS.contains(&key.as_str()) || is_toml || has_comment {
                return None;
            }
            has_settings = true;
            toml.push_str(&format!("{key} = {}", toml::Value::from(value)));
        }
        toml.push('\n');
    }
    has_settings.then_some(toml)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converted_value_is_unchanged() {
        let text = "[nixl]\ntelemetry_dir = /tmp/a \\ b#c;d\n";
        let converted: toml::Table = convert(text).expect("INI").parse().expect("TOML");
        let path = converted["nixl"]["telemetry_dir"].as_str();
        assert_eq!(path, Some("/tmp/a \\ b#c;d"));
    }

    #[test]
    fn toml_file_with_a_mistake_is_not_read_as_ini() {
        for text in [
            "[nixl]\nuser = \"root\n",
            "user = root\n",
            "[other]\nuser = root\n",
            "[nixl]\nuser = root\na b = 5\n",
            "[nixl]\nuser = root\nobserve = true\n",
            "[nixl]\nuser = root\n\u{1b}c = 1\n",
            "[nixl]\nuser = root # x\n",
            "[nixl]\n# user\ruser = root\nuser = root\n",
            "[nixl]\nuser = 4242\n",
            "[nixl]\nuser = “root”\n",
            "[nixl]\n",
        ] {
            assert_eq!(convert(text), None, "{text}");
        }
    }
}
