//! Parser of flag values into values of a configuration document.

use serde_json::{Map, Value, json};

use super::super::duration::GoDuration;
use super::super::kubelet::TaintEffect;
use super::Kind;

/// Parses the values given for a flag; the error says what is expected.
///
/// For scalar flags the last value counts; lists and maps accumulate.
pub fn parse(kind: Kind, given: &[String]) -> Result<Value, String> {
    let texts = given.iter().map(String::as_str);
    match kind {
        Kind::Bool => last(texts, boolean),
        Kind::Text => last(texts, |text| Ok(Value::from(text))),
        Kind::Int32 => last(texts, |text| {
            let number = integer(text).and_then(|number| i32::try_from(number).ok());
            number
                .map(Value::from)
                .ok_or_else(|| "must be a whole number of at most 32 bits".to_owned())
        }),
        Kind::Int64 => last(texts, |text| {
            integer(text).map(Value::from).ok_or_else(|| "must be a whole number".to_owned())
        }),
        Kind::Level => last(texts, |text| {
            let level = integer(text).and_then(|number| u32::try_from(number).ok());
            level.map(Value::from).ok_or_else(|| "must be a whole number from 0".to_owned())
        }),
        Kind::Duration => last(texts, |text| {
            let duration: Result<GoDuration, _> = text.parse();
            duration.map(|duration| json!(duration)).map_err(|error| error.to_string())
        }),
        Kind::Address => last(texts, address),
        Kind::Quantity => last(texts, |text| Ok(Value::from(text))),
        Kind::List => gather_list(texts.flat_map(items), |item| Ok(Value::from(item))),
        Kind::Map => gather_map(texts.flat_map(items), |item| pair(item, '=')),
        Kind::Pair => gather_map(texts, |item| pair(item, '=')),
        Kind::Thresholds => gather_map(texts.flat_map(items), |item| pair(item, '<')),
        Kind::Gates => gather_map(texts.flat_map(items), |item| {
            let (key, value) = pair(item, '=')?;
            Ok((key, boolean(value.as_str().unwrap_or_default())?))
        }),
        Kind::Labels => gather_map(texts.flat_map(items), |item| {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            Ok((key.trim().to_owned(), Value::from(value.trim())))
        }),
        Kind::Headers => headers(texts.flat_map(items)),
        // As with a plain value, a later --register-with-taints replaces an earlier one.
        Kind::Taints => last(texts, |text| gather_list(items(text), taint)),
        Kind::NumaMemory => gather_list(
            texts.flat_map(|text| text.split(';')).filter(|t| !t.is_empty()),
            numa_memory,
        ),
        Kind::ModuleLevels => last(texts, |text| gather_list(items(text), module_level)),
    }
}

fn last<'t>(
    mut texts: impl Iterator<Item = &'t str>,
    read: impl Fn(&str) -> Result<Value, String>,
) -> Result<Value, String> {
    texts.try_fold(Value::Null, |_, text| read(text))
}

fn gather_list<'t>(
    items: impl Iterator<Item = &'t str>,
    read: impl Fn(&str) -> Result<Value, String>,
) -> Result<Value, String> {
    items.map(read).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn gather_map<'t>(
    items: impl Iterator<Item = &'t str>,
    read: impl Fn(&str) -> Result<(String, Value), String>,
) -> Result<Value, String> {
    items.map(read).collect::<Result<Map<_, _>, _>>().map(Value::Object)
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|item| !item.is_empty())
}

/// The spellings that Go's `ParseBool` accepts.
fn boolean(text: &str) -> Result<Value, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
        _ => Err("must be true or false".to_owned()),
    }
}

/// A decimal, or `0x`, `0o` or `0b`, or octal after a bare zero, as Go reads numbers.
fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let lower = digits.to_ascii_lowercase();
    let magnitude = if let Some(hex) = lower.strip_prefix("0x") {
        i128::from_str_radix(hex, 16)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        i128::from_str_radix(binary, 2)
    } else if let Some(octal) = lower.strip_prefix("0o") {
        i128::from_str_radix(octal, 8)
    } else if let Some(octal) = lower.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        i128::from_str_radix(octal, 8)
    } else {
        lower.parse()
    };
    let magnitude = magnitude.ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

fn address(text: &str) -> Result<Value, String> {
    let address: Result<std::net::IpAddr, _> = text.parse();
    address.map(|address| json!(address)).map_err(|_| "must be an IP address".to_owned())
}

fn pair(item: &str, separator: char) -> Result<(String, Value), String> {
    let (key, value) = item
        .split_once(separator)
        .ok_or_else(|| format!("must be pairs key{separator}value, which {item:?} is not"))?;
    Ok((key.trim().to_owned(), Value::from(value.trim())))
}

fn headers<'t>(items: impl Iterator<Item = &'t str>) -> Result<Value, String> {
    let mut headers = Map::new();
    for item in items {
        // The item may contain a credential and is not printed.
        let (name, value) =
            item.split_once(':').ok_or_else(|| "must be pairs Name:value".to_owned())?;
        let values = headers.entry(name.trim()).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(values) = values {
            values.push(Value::from(value.trim()));
        }
    }
    Ok(Value::Object(headers))
}

fn taint(item: &str) -> Result<Value, String> {
    let malformed = || format!("must be key=value:Effect or key:Effect, which {item:?} is not");
    let (key_value, effect) = item.split_once(':').ok_or_else(malformed)?;
    let (key, value) = key_value.split_once('=').unwrap_or((key_value, ""));
    let effect =
        TaintEffect::ALL.iter().find(|known| known.as_str() == effect).ok_or_else(|| {
            let known = TaintEffect::ALL.map(TaintEffect::as_str).join(", ");
            format!("has the effect {effect:?}, which must be one of {known}")
        })?;
    if value.is_empty() {
        return Ok(json!({"key": key, "effect": effect}));
    }
    Ok(json!({"key": key, "value": value, "effect": effect}))
}

fn numa_memory(item: &str) -> Result<Value, String> {
    let malformed = || format!("must be node:type=quantity,…, which {item:?} is not");
    let (node, limits) = item.split_once(':').ok_or_else(malformed)?;
    let node: i32 = node.parse().map_err(|_| malformed())?;
    let limits = gather_map(items(limits), |item| pair(item, '='))?;
    Ok(json!({"numaNode": node, "limits": limits}))
}

fn module_level(item: &str) -> Result<Value, String> {
    let malformed = || format!("must be pattern=N, which {item:?} is not");
    let (pattern, level) = item.split_once('=').ok_or_else(malformed)?;
    let level: u32 = level.trim().parse().map_err(|_| malformed())?;
    Ok(json!({"filePattern": pattern.trim(), "verbosity": level}))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_like_go() {
        for (kind, given, want) in [
            (Kind::Bool, vec!["T"], json!(true)),
            (Kind::Bool, vec!["true", "0"], json!(false)),
            (Kind::Text, vec!["a", "b"], json!("b")),
            (Kind::Int32, vec!["-5"], json!(-5)),
            (Kind::Int32, vec!["0x10"], json!(16)),
            (Kind::Int32, vec!["010"], json!(8)),
            (Kind::Int64, vec!["5000000000"], json!(5_000_000_000_i64)),
            (Kind::Level, vec!["4"], json!(4)),
            (Kind::Duration, vec!["90s"], json!("1m30s")),
            (Kind::Address, vec!["::1"], json!("::1")),
            (Kind::List, vec!["a,b", "c"], json!(["a", "b", "c"])),
            (Kind::List, vec![""], json!([])),
            (Kind::Map, vec!["cpu=1, memory = 2", "cpu=3"], json!({"cpu": "3", "memory": "2"})),
            (Kind::Map, vec!["a=b=c"], json!({"a": "b=c"})),
            (Kind::Pair, vec!["a=1,2", "b=3"], json!({"a": "1,2", "b": "3"})),
            (Kind::Thresholds, vec!["memory.available<1Gi"], json!({"memory.available": "1Gi"})),
            (Kind::Thresholds, vec![""], json!({})),
            (Kind::Gates, vec!["A=true,B=f"], json!({"A": true, "B": false})),
            (Kind::Labels, vec!["a=b,c", "d="], json!({"a": "b", "c": "", "d": ""})),
            (Kind::Headers, vec!["a:b,a:c", "d:e:f"], json!({"a": ["b", "c"], "d": ["e:f"]})),
            (
                Kind::Taints,
                vec!["x:NoExecute", "a=b:NoSchedule,c:NoExecute"],
                json!([
                    {"key": "a", "value": "b", "effect": "NoSchedule"},
                    {"key": "c", "effect": "NoExecute"}
                ]),
            ),
            (
                Kind::NumaMemory,
                vec!["0:memory=1Gi,hugepages-2Mi=2Mi;1:memory=1Gi"],
                json!([
                    {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}},
                    {"numaNode": 1, "limits": {"memory": "1Gi"}}
                ]),
            ),
            (
                Kind::ModuleLevels,
                vec!["pleg=6,status*=4"],
                json!([
                    {"filePattern": "pleg", "verbosity": 6},
                    {"filePattern": "status*", "verbosity": 4}
                ]),
            ),
        ] {
            let given: Vec<String> = given.into_iter().map(str::to_owned).collect();
            assert_eq!(parse(kind, &given), Ok(want), "{kind:?} {given:?}");
        }
    }

    #[test]
    fn invalid_values_are_refused_with_the_expectation() {
        for (kind, given, want) in [
            (Kind::Bool, "yes", "must be true or false"),
            (Kind::Int32, "many", "must be a whole number of at most 32 bits"),
            (Kind::Int32, "99999999999", "must be a whole number of at most 32 bits"),
            (Kind::Int32, "--5", "must be a whole number of at most 32 bits"),
            (Kind::Int64, "1.5", "must be a whole number"),
            (Kind::Level, "-1", "must be a whole number from 0"),
            (Kind::Duration, "90", "has no unit; write for example 90s or 90m"),
            (Kind::Address, "localhost", "must be an IP address"),
            (Kind::Map, "cpu", r#"must be pairs key=value, which "cpu" is not"#),
            (Kind::Thresholds, "a=1", r#"must be pairs key<value, which "a=1" is not"#),
            (Kind::Gates, "A=maybe", "must be true or false"),
            (Kind::Headers, "Bearer s3cret", "must be pairs Name:value"),
            (Kind::Taints, "a", r#"must be key=value:Effect or key:Effect, which "a" is not"#),
            (
                Kind::Taints,
                "a:Never",
                r#"has the effect "Never", which must be one of NoSchedule, PreferNoSchedule, NoExecute"#,
            ),
            (
                Kind::NumaMemory,
                "x:memory=1",
                r#"must be node:type=quantity,…, which "x:memory=1" is not"#,
            ),
            (Kind::ModuleLevels, "pleg", r#"must be pattern=N, which "pleg" is not"#),
        ] {
            assert_eq!(parse(kind, &[given.to_owned()]), Err(want.to_owned()), "{kind:?} {given}");
        }
    }
}
