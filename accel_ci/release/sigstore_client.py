"""Sign wheels and verify attestations by Sigstore's services, in the process that `attestations.py` starts.

Sigstore's client waits for answers without a limit, so that only the end of a process bounds it. The program reads one JSON
object from its standard input, and writes its answers to a folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

if TYPE_CHECKING:
    from pypi_attestations import Attestation, Distribution
    from sigstore.models import ClientTrustConfig
    from sigstore.verify.policy import VerificationPolicy

ANSWER = "answer.json"
SUFFIX = ".publish.attestation"
_PUBLISH = "https://docs.pypi.org/attestations/publish/v1"
_TIMEOUT_S = 30
_LARGEST_PAGE = 64 << 20
_PAGE = "application/vnd.pypi.simple.v1+json"


class NotAttestedError(Exception):
    """An attestation, or what an index has in its place, is not good for a wheel; the message says why."""


def sign(trust: ClientTrustConfig, wheels: list[Path], token: str | None, out: Path) -> dict[str, Any]:
    """Sign wheels by the identity of an OIDC token, or of the job, verify that, and return who has signed each.

    Writes each attestation to `out`, under the name of its wheel. Raises the exceptions of the packages.
    """
    from pypi_attestations import Attestation, Distribution
    from sigstore.oidc import IdentityToken, detect_credential
    from sigstore.sign import SigningContext
    from sigstore.verify.policy import OIDCIssuer

    token = token or detect_credential()
    if token is None:
        raise NotAttestedError("the job has no identity")
    identity, answer = IdentityToken(token), {}
    with SigningContext.from_trust_config(trust).signer(identity) as signer:
        for path in wheels:
            wheel = Distribution.from_file(path)
            made = Attestation.sign(signer, wheel)
            verify(trust, made, wheel, OIDCIssuer(identity.issuer))
            (out / f"{path.name}{SUFFIX}").write_text(made.model_dump_json())
            entry = made.verification_material.transparency_entries[0]
            answer[path.name] = {**signer_of(made), "log_index": int(entry["logIndex"])}
    return answer


def verify(trust: ClientTrustConfig, attestation: Attestation, wheel: Distribution, policy: VerificationPolicy) -> None:
    """Verify that a publisher whom a policy accepts has signed that it published this very wheel.

    Raises `NotAttestedError`. (`Attestation.verify` knows the public services only.)
    """
    from sigstore.errors import VerificationError
    from sigstore.verify import Verifier

    try:
        kind, payload = Verifier(trusted_root=trust.trusted_root).verify_dsse(attestation.to_bundle(), policy)
        statement = json.loads(payload)
        subjects = [(each["name"], each["digest"]["sha256"]) for each in statement["subject"]]
    except (VerificationError, ValueError, LookupError, TypeError) as error:
        raise NotAttestedError(f"the attestation of {wheel.name} does not hold: {error}") from error
    if kind != "application/vnd.in-toto+json" or statement.get("predicateType") != _PUBLISH:
        raise NotAttestedError(f"the attestation of {wheel.name} does not say that somebody published it")
    if subjects != [(wheel.name, wheel.digest)]:
        raise NotAttestedError(f"the attestation of {wheel.name} is of another file")


def signer_of(attestation: Attestation) -> dict[str, str]:
    """Return the identity in the certificate of an attestation, and the issuer that has vouched for it."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(attestation.verification_material.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    issuer = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")).value
    assert isinstance(issuer, x509.UnrecognizedExtension)  # noqa: S101 - cryptography knows no such extension
    identities = names.get_values_for_type(x509.UniformResourceIdentifier) + names.get_values_for_type(x509.RFC822Name)
    return {"identity": identities[0], "issuer": issuer.value.decode()}


def look(trust: ClientTrustConfig, simple: str, wheels: Mapping[str, Mapping[str, str]]) -> dict[str, bool]:
    """Look at the attestations that an index shows of wheels, and return of each whether it shows any.

    Of each wheel, its project, digest, and the signer are known. Raises `NotAttestedError` if none of those that it shows of
    a wheel is by that signer and of that file.
    """
    from pypi_attestations import Distribution, Provenance
    from sigstore.verify.policy import Identity

    answer = {}
    for name, known in wheels.items():
        address = urljoin(simple.rstrip("/") + "/", f"{known['project']}/")
        page = _get(address, _PAGE)
        files = json.loads(page).get("files", []) if page is not None else []
        places = [each.get("provenance") for each in files if each.get("filename") == name]
        document = _get(urljoin(address, places[0]), "application/json") if places and places[0] else None
        answer[name] = document is not None
        if document is None:
            continue
        bundles = Provenance.model_validate_json(document).attestation_bundles
        shown = [each for bundle in bundles for each in bundle.attestations]
        signer = Identity(identity=known["identity"], issuer=known["issuer"])
        problems = []
        for each in shown:
            try:
                verify(trust, each, Distribution(name=name, digest=known["sha256"]), signer)
                break
            except NotAttestedError as error:
                problems.append(str(error))
        else:
            raise NotAttestedError(f"the index shows no attestation of {name} by its publisher: {'; '.join(problems)}")
    return answer


def _get(address: str, kind: str) -> bytes | None:
    """Return a document, None if there is none of that kind."""
    import requests

    with requests.get(address, headers={"Accept": kind}, timeout=_TIMEOUT_S, stream=True) as answer:
        if answer.status_code == requests.codes.not_found:
            return None
        answer.raise_for_status()
        content: bytes = answer.raw.read(_LARGEST_PAGE, decode_content=True)
        return content if answer.headers.get("Content-Type", "").partition(";")[0] == kind else None


def main() -> int:
    """Do what the object on the standard input says; return the exit status."""
    from sigstore.models import ClientTrustConfig

    given, answer = json.load(sys.stdin), {}
    out = Path(given["out"])
    try:
        own = Path(given["trust"]).read_text() if given["trust"] else None
        trust = ClientTrustConfig.from_json(own) if own is not None else ClientTrustConfig.production()
        trust.force_tlog_version = 1  # an attestation has no place for the timestamp that entries of version 2 need
        if "simple" in given:
            answer = look(trust, given["simple"], given["wheels"])
        else:
            answer = sign(trust, [Path(path) for path in given["wheels"]], given["token"], out)
    except Exception as error:  # many packages raise here, all kinds
        words = next((text for each in (error, error.__cause__) if (text := str(each or "").strip())), "")
        print(f"{type(error).__name__}: {words}")  # noqa: T201 - the caller reads it
        return 1
    (out / ANSWER).write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
