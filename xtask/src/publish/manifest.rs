//! Checks of the manifests.

use serde_json::Value;

use super::Published;

/// Fields that crates.io shows or demands.
const FIELDS: [&str; 7] = ["description", "license", "repository", "readme", "rust_version", "keywords", "categories"];

/// Checks that a crate says all that its page shows, and how docs.rs is to build it.
pub(super) fn check(package: &Published<'_>) -> Result<(), String> {
    let empty = |field: &Value| field.is_null() || field.as_array().is_some_and(Vec::is_empty);
    let missing = FIELDS.into_iter().find(|name| empty(&package.description[*name]));
    if let Some(name) = missing {
        return Err(format!("{} has no {name}; its Cargo.toml is where it belongs", package.name));
    }
    if package.description["metadata"]["docs"]["rs"].is_null() {
        return Err(format!(
            "{} does not say how docs.rs builds it: [package.metadata.docs.rs] is missing",
            package.name
        ));
    }
    Ok(())
}

/// The least Rust that the workspace promises, with every dependency's own promise checked against it.
pub(super) fn rust_version(metadata: &Value) -> Result<String, String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ours = packages.iter().find(|package| package["name"] == "gradwire" && package["source"].is_null());
    let ours =
        ours.and_then(|package| package["rust_version"].as_str()).ok_or("the crate gradwire has no rust-version")?;
    for package in packages {
        let Some(theirs) = package["rust_version"].as_str() else { continue };
        if parts(theirs) > parts(ours) {
            return Err(format!(
                "{} {} needs Rust {theirs}, and the crates promise to build with {ours}: keep an older version of it in Cargo.lock",
                package["name"], package["version"]
            ));
        }
    }
    Ok(ours.to_owned())
}

/// `1.89` and `1.89.0` as numbers that compare as versions do.
fn parts(version: &str) -> [u32; 3] {
    let mut parts = [0; 3];
    for (part, text) in parts.iter_mut().zip(version.split('.')) {
        *part = text.parse().unwrap_or(0);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(parts("1.100") > parts("1.89.1") && parts("1.89") == parts("1.89.0") && parts("1.9") < parts("1.89"));
    }

    #[test]
    fn a_dependency_that_needs_a_newer_rust_is_refused() {
        let graph = |theirs: &str| {
            serde_json::json!({"packages": [
                {"name": "gradwire", "source": null, "rust_version": "1.89"},
                {"name": "other", "source": "registry", "rust_version": theirs, "version": "2.0.0"},
            ]})
        };
        assert_eq!(rust_version(&graph("1.89.0")).as_deref(), Ok("1.89"));
        assert!(rust_version(&graph("1.90")).is_err_and(|e| e.contains("other") && e.contains("1.90")));
    }
}
