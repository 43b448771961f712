# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks and converts the manifests of share/kubernetes.

    manifest.py FILE            checks each document against the published schemas of all releases of Kubernetes in the
                                package kubernetes-validate, or against qa/kubernetes/KIND.json, then prints the documents as a
                                JSON array. A key that is not in the schema is an error. FILE `-` is standard input.
    manifest.py --json FILE     prints the documents as a JSON array, without a check
    manifest.py --shell FILE    prints the settings of the DaemonSet's container as assignments for sh
    manifest.py --config FILE DIRECTORY
                                writes the ConfigMap as files in DIRECTORY
"""

import json
import pathlib
import shlex
import sys

import yaml


def documents(file):
    """Returns the documents of a file."""
    text = sys.stdin.read() if file == "-" else pathlib.Path(file).read_text()
    return [document for document in yaml.safe_load_all(text) if document is not None]


def only(file, kind):
    """Returns the document of a kind. There must be exactly one."""
    (document,) = (document for document in documents(file) if document["kind"] == kind)
    return document


def check(file):
    """Prints the errors of a manifest. Returns true if there are none."""
    # From PyPI (qa/kubernetes/venv). The other commands need only packages of the distribution.
    import jsonschema
    import kubernetes_validate

    found = documents(file)
    errors = [] if found else [f"{file}: no document"]
    for document in found:
        own = pathlib.Path(__file__).with_name(f"{document.get('kind')}.json")
        if own.exists():
            for error in jsonschema.Draft7Validator(json.loads(own.read_text())).iter_errors(document):
                errors.append(f"{file}: {own.stem}: {error.json_path}: {error.message}")
            continue
        for release in kubernetes_validate.utils.all_versions():
            try:
                kubernetes_validate.validate(document, release, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(str(part) for part in error.path)
                errors.append(f"{file}: Kubernetes {release}: {document.get('kind')}: {where}: {error.message}")
            except Exception as error:  # no schema has this kind or API version
                why = getattr(error, "message", repr(error))
                errors.append(f"{file}: Kubernetes {release}: {document.get('kind')}: {why}")
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    print(json.dumps(found))
    return not errors


def shell(file):
    """Prints shell assignments with the container's mounts, capabilities, grace period and probes."""
    spec = only(file, "DaemonSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    volumes = {volume.pop("name"): volume for volume in spec["volumes"]}
    mounts = []
    for mount in sorted(container["volumeMounts"], key=lambda mount: mount["mountPath"]):
        ((kind, volume),) = volumes[mount["name"]].items()
        propagation = mount.get("mountPropagation", "None")
        mounts.append(":".join([kind, mount["mountPath"], propagation, volume.get("path", "")]))
    capabilities = container["securityContext"]["capabilities"]
    assert capabilities["drop"] == ["ALL"]
    values = {
        "mounts": " ".join(mounts),
        "capabilities": ",".join(capabilities["add"]),
        "grace": str(spec["terminationGracePeriodSeconds"]),
        "ready": shlex.join(container["readinessProbe"]["exec"]["command"]),
        "live": shlex.join(container["livenessProbe"]["exec"]["command"]),
    }
    for name, value in values.items():
        print(f"{name}={shlex.quote(value)}")


def config(file, directory):
    """Writes the files of the ConfigMap, as symbolic links like those of the kubelet."""
    data = pathlib.Path(directory, "..data")
    data.mkdir(parents=True)
    for name, text in only(file, "ConfigMap")["data"].items():
        (data / name).write_text(text)
        pathlib.Path(directory, name).symlink_to(f"..data/{name}")


match sys.argv[1:]:
    case ["--json", file]:
        print(json.dumps(documents(file)))
    case ["--shell", file]:
        shell(file)
    case ["--config", file, directory]:
        config(file, directory)
    case [file]:
        sys.exit(not check(file))
    case _:
        sys.exit(__doc__)
