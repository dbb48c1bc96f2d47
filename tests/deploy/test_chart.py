"""The chart for Kubernetes: rendered by the real helm, and its pods' commands run here."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import yaml

import guard
from guard.gateway.admin import AdminClient
from guard.gateway.settings_sources import load, table, unknown_variables
from guard.proxy.command import proxy as proxy_command
from guard.settings import VARIABLES, Settings
from tests.support.generators import generator
from tests.support.helm import CHART, helm, objects, rendered
from tests.support.postgres import own_database
from tests.support.programs import environment, killed_at_last
from tests.support.waiting import WAIT_S, until

ROOT = Path(__file__).parents[2]
ADMIN_KEY = "gda_" + "0" * 64
SECRETS = {
    "database": "postgresql://guard:of-the-database@postgres:5432/guard",
    "first-admin-key": ADMIN_KEY,
    "agents": "gdk_" + "1" * 64,
    "password": "a password for tests",
    "openid": "of-the-provider",
    "metrics": "3" * 64,
    "proxy-key": "gdp_" + "2" * 64,
}
SMALL: dict[str, Any] = {}
LARGE: dict[str, Any] = {
    "image": {"repository": "registry.example.com/guard", "digest": "sha256:" + "a" * 64,
              "pullSecrets": [{"name": "registry"}]},
    "gateway": {
        "secrets": {
            "firstApiKey": {"key": "agents"},
            "firstPassword": {"name": "people", "key": "password"},
            "openidClientSecret": {"key": "openid"},
            "metricsKey": {"name": "monitoring", "key": "metrics"},
        },
        "settings": {
            "trusted_proxies": ["10.42.0.0/16", "fd00::/8"],
            "max_pending_bytes": 67_108_864,
            "retention_days": 400,
            "private_webhooks": True,
            "poll_wait_max": "20s",
            "fallback_input_price": "$10",
            "openid_issuer": "https://login.example.com",
            "openid_client_id": "guard",
        },
        "drain": {"delaySeconds": 7, "timeoutSeconds": 30},
        "autoscaling": {"enabled": True},
        "ingress": {"enabled": True, "className": "nginx", "host": "guard.example.com",
                    "tlsSecretName": "guard-tls"},
        "podAnnotations": {"example.com/a": "b"},
        "podLabels": {"team": "platform"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "agents", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "extraEnv": [{"name": "PGSSLROOTCERT", "value": "/ca/ca.pem"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
        "service": {"annotations": {"example.com/c": "d"}},
    },
    "proxy": {
        "enabled": True,
        "upstreams": {"openai": "https://mirror.example.com", "custom/own": "https://llm.example"},
        "secrets": {"metricsKey": {"name": "monitoring", "key": "metrics"}},
        "allowUnseen": True,
        "connectionsMax": 20_000,
        "autoscaling": {"enabled": True},
        "ingress": {"enabled": True, "host": "proxy.example.com"},
    },
    "serviceAccount": {"annotations": {"example.com/role": "guard"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True},
}  # fmt: skip
PROXY: dict[str, Any] = {"proxy": {"enabled": True}}


# -- what the files say, without helm --------------------------------------------------------------


def test_the_schema_names_the_settings_that_there_are() -> None:
    settings = generator("gateway_settings")
    assert settings.CHART.read_text() == settings.chart_schema(), (
        "run python docs/generate_gateway_settings.py"
    )
    assert {each.name for each in table()} > settings.CHARTS_OWN


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == guard.__version__
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    for part in ("gateway", "proxy"):
        described = set(schema["properties"][part]["properties"])
        assert described == set(values[part]), "every value is in values.yaml, with its comment"


# -- rendered --------------------------------------------------------------------------------------


@attrs.frozen
class Rendered:
    """What the chart makes of some values."""

    objects: list[dict[str, Any]]

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the objects of a kind by name."""
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the specifications of the pods by the deployment's name."""
        found = self.of("Deployment")
        return {name: each["spec"]["template"]["spec"] for name, each in found.items()}

    def container(self, name: str) -> dict[str, Any]:
        """Return the only container of a deployment."""
        [found] = self.pods()[name]["containers"]
        return dict(found)

    def variables(self, name: str) -> dict[str, str]:
        """Return the environment of a deployment's container, secrets and all."""
        container = self.container(name)
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            found |= self.of("ConfigMap")[source["configMapRef"]["name"]]["data"]
        for each in container["env"]:
            reference = each.get("valueFrom", {}).get("secretKeyRef")
            found[each["name"]] = SECRETS[reference["key"]] if reference else each["value"]
        assert all(isinstance(value, str) for value in found.values())
        return found


@pytest.fixture(scope="module", params=["small", "proxy", "large"])
def made(request: pytest.FixtureRequest) -> Rendered:
    """The chart's objects, for several sets of values."""
    return Rendered(objects({"small": SMALL, "proxy": PROXY, "large": LARGE}[request.param]))


@pytest.fixture(scope="module")
def large() -> Rendered:
    """The chart's objects where everything is switched on."""
    return Rendered(objects(LARGE))


@pytest.mark.parametrize("values", [SMALL, PROXY, LARGE], ids=["small", "proxy", "large"])
def test_helm_has_no_complaint(values: dict[str, Any], tmp_path: Path) -> None:
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(values))
    done = helm("lint", "--strict", CHART, "--values", given)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["1.27", "1.34"])
def test_kubernetes_takes_every_object(made: Rendered, version: str) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="NOT TESTED: kubernetes-validate, which nox -s deploy brings"
    )
    for each in made.objects:
        if each["kind"] != "ServiceMonitor":  # the Prometheus operator's
            validate.validate(each, version, strict=True)


def test_every_kind_is_there(large: Rendered) -> None:
    both = ["guard", "guard-proxy"]
    for kind in ("Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler",
                 "Ingress", "NetworkPolicy", "ServiceMonitor"):  # fmt: skip
        assert list(large.of(kind)) == both, kind
    assert list(large.of("ServiceAccount")) == list(large.of("ConfigMap")) == ["guard"]
    small = Rendered(objects(SMALL))
    assert {each["kind"] for each in small.objects} == {
        "ServiceAccount", "ConfigMap", "Deployment", "Service", "PodDisruptionBudget",
    }  # fmt: skip
    assert small.of("Deployment")["guard"]["spec"]["replicas"] == 2
    assert "replicas" not in large.of("Deployment")["guard"]["spec"], "the autoscaler's to say"


def test_everything_selects_its_own_pods(made: Rendered) -> None:
    deployments = made.of("Deployment")
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"] for name, each in deployments.items()
    }
    for name, deployment in deployments.items():
        [spread] = made.pods()[name]["topologySpreadConstraints"]
        selectors = [
            deployment["spec"]["selector"]["matchLabels"],
            made.of("Service")[name]["spec"]["selector"],
            made.of("PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"],
            spread["labelSelector"]["matchLabels"],
        ]
        if policy := made.of("NetworkPolicy").get(name):
            selectors.append(policy["spec"]["podSelector"]["matchLabels"])
        if monitor := made.of("ServiceMonitor").get(name):
            wanted = monitor["spec"]["selector"]["matchLabels"]
            assert wanted.items() <= made.of("Service")[name]["metadata"]["labels"].items()
            selectors.append(wanted)
        for selector in selectors:
            assert [each for each, has in labels.items() if selector.items() <= has.items()] == [
                name
            ]
        [port] = made.of("Service")[name]["spec"]["ports"]
        assert port["targetPort"] in {each["name"] for each in made.container(name)["ports"]}
        if scaler := made.of("HorizontalPodAutoscaler").get(name):
            assert scaler["spec"]["scaleTargetRef"]["name"] == name


def test_a_drain_takes_one_pod_at_a_time(made: Rendered) -> None:
    for budget in made.of("PodDisruptionBudget").values():
        assert budget["spec"]["maxUnavailable"] == 1
    for deployment in made.of("Deployment").values():
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {
            "maxUnavailable": 0, "maxSurge": 1,
        }  # fmt: skip


def test_pods_are_confined(made: Rendered) -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    for name, pod in made.pods().items():
        container = made.container(name)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert f"USER {pod['securityContext']['runAsUser']}" in dockerfile
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert container["volumeMounts"][0]["mountPath"] == "/var/lib/guard"
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_no_secret_is_written(made: Rendered) -> None:
    """Neither as an object, nor as a value: each is a key of a Secret that exists."""
    assert made.of("Secret") == {}
    text = json.dumps(made.objects)
    for name in made.pods():
        for each in made.container(name)["env"]:
            if re.search(r"KEY|DATABASE|SECRET|PASSWORD", each["name"]):
                by_file = each["name"].endswith("_FILE")
                assert by_file or set(each["valueFrom"]["secretKeyRef"]) == {"name", "key"}
    for value in SECRETS.values():
        assert value not in text


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"gateway": {"settings": {"first_admin_key": ADMIN_KEY}}}, "first_admin_key"),
        ({"gateway": {"settings": {"database": SECRETS["database"]}}}, "database"),
        ({"gateway": {"settings": {"retention_day": 5}}}, "retention_day"),
        ({"gateway": {"settings": {"retention_days": "5"}}}, "retention_days"),
        ({"gateway": {"secrets": {"database": {"value": "x"}}}}, "value"),
        ({"gateway": {"secrets": {"database": {"key": ""}}}}, "key"),
        ({"serviceMonitor": {"enabled": True}}, "gateway.secrets.metricsKey"),
        ({"gateway": {"extraEnv": [{"name": "GUARD_GATEWAY_DATABASE", "value": "x"}]}}, "extraEnv"),
        ({"proxy": {"extraEnv": [{"name": "GUARD_API_KEY", "value": "x"}]}}, "extraEnv"),
        ({"proxy": {"upstream": {}}}, "upstream"),
        ({"gateway": {"replicas": 0}}, "replicas"),
        ({"gateway": {"publicUrl": "guard.example.com"}}, "publicUrl"),
        ({"gateway": {"ingress": {"enabled": True}}}, "host"),
        ({"gateway": {"ingress": {"enabled": True, "host": "g.example"}}}, "trusted_proxies"),
        ({"image": {"digest": "latest"}}, "digest"),
    ],
)
def test_a_wrong_value_is_refused_and_named(values: dict[str, Any], named: str) -> None:
    done = rendered(values)
    assert done.returncode != 0
    assert named in done.stderr


def test_the_name_that_breaks_gateways_is_refused() -> None:
    done = rendered(SMALL, release="guard-gateway")
    assert done.returncode != 0
    assert "call the release something else" in done.stderr
    names = {name for each in ("x", "my-guard") for name in Rendered(objects(PROXY, each)).pods()}
    assert names == {"x-guard", "x-guard-proxy", "my-guard", "my-guard-proxy"}


def test_the_image_is_the_one_that_is_built_here(made: Rendered, large: Rendered) -> None:
    assert {made.container(name)["image"] for name in made.pods()} <= {
        f"guard-gateway:{guard.__version__}",
        "registry.example.com/guard@sha256:" + "a" * 64,
    }
    assert large.pods()["guard"]["imagePullSecrets"] == [{"name": "registry"}]
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    [port] = made.container("guard")["ports"]
    assert f"GUARD_GATEWAY_PORT={port['containerPort']}" in dockerfile
    assert f"EXPOSE {port['containerPort']}" in dockerfile
    assert 'ENTRYPOINT ["guard", "gateway"]' in dockerfile
    assert "command" not in made.container("guard")


# -- settings and commands that exist --------------------------------------------------------------


def placed(text: str, folder: Path) -> str:
    return text.replace("/run/secrets/guard", str(folder))


def with_files(made: Rendered, folder: Path) -> dict[str, str]:
    """Write the files of the gateway's secrets, and return its environment."""
    for volume in made.pods()["guard"]["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            for item in source["secret"]["items"]:
                (folder / item["path"]).write_text(SECRETS[item["key"]] + "\n")
    found = made.variables("guard")
    return {name: placed(value, folder) for name, value in found.items()}


def test_the_gateways_settings_exist_and_its_times_fit(made: Rendered, tmp_path: Path) -> None:
    variables = with_files(made, tmp_path)
    del variables["GUARD_GATEWAY_DATABASE"]
    assert unknown_variables(variables) == []
    settings = load({}, {**variables, "GUARD_GATEWAY_DATABASE": SECRETS["database"]})
    assert settings.first_admin_key_file is not None
    assert settings.first_admin_key_file.read_text().strip() == ADMIN_KEY
    assert settings.log_format == "json"
    pod, container = made.pods()["guard"], made.container("guard")
    drain_s = (settings.drain_delay_ms + settings.drain_timeout_ms) / 1000
    assert drain_s < pod["terminationGracePeriodSeconds"]
    ready = container["readinessProbe"]
    noticed_s = ready["periodSeconds"] * ready["failureThreshold"]
    assert settings.drain_delay_ms / 1000 >= noticed_s, "the cluster notices in the meantime"
    assert ready["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"


def test_settings_arrive_as_they_are_written(large: Rendered, tmp_path: Path) -> None:
    settings = load({}, with_files(large, tmp_path))
    assert settings.public_url == "https://guard.example.com"
    assert settings.trusted_proxies == ("10.42.0.0/16", "fd00::/8")
    assert settings.max_pending_bytes == 67_108_864
    assert settings.connections_max == 12_000
    assert settings.retention_days == 400
    assert settings.private_webhooks is True
    assert settings.poll_wait_max_ms == 20_000
    assert settings.fallback_input_per_mtok == 10_000_000_000
    assert settings.openid_issuer == "https://login.example.com"
    for name in ("first_api_key", "first_password", "openid_client_secret"):
        assert getattr(settings, f"{name}_file").read_text()
    assert (settings.drain_delay_ms, settings.drain_timeout_ms) == (7_000, 30_000)
    sources = {
        source["secret"]["name"]
        for volume in large.pods()["guard"]["volumes"] if volume["name"] == "secrets"
        for source in volume["projected"]["sources"]
    }  # fmt: skip
    assert sources == {"guard", "people", "monitoring"}


def test_the_public_address_is_the_ingresss_or_the_services() -> None:
    def public(**gateway: Any) -> str:
        made = Rendered(objects({"gateway": gateway}))
        return made.variables("guard")["GUARD_GATEWAY_PUBLIC_URL"]

    assert public() == "http://guard"
    assert public(service={"port": 8080}) == "http://guard:8080"
    assert public(publicUrl="https://g.example.com") == "https://g.example.com"


def test_the_proxys_command_and_settings_exist(large: Rendered) -> None:
    container = large.container("guard-proxy")
    assert container["command"] == ["guard", "proxy", "serve"]
    serve = proxy_command.commands["serve"]
    with serve.make_context("serve", list(container["args"])) as context:
        given = context.params
    assert (given["host"], given["port"]) == ("0.0.0.0", container["ports"][0]["containerPort"])
    assert given["connections_max"] == 20_000
    assert given["allow_unseen"] is True
    assert given["upstreams"].origins["openai"] == "https://mirror.example.com"
    assert given["upstreams"].origins["custom/own"] == "https://llm.example"
    pod = large.pods()["guard-proxy"]
    [_, delay] = container["lifecycle"]["preStop"]["exec"]["command"]
    assert int(delay) + given["drain_ms"] / 1000 < pod["terminationGracePeriodSeconds"]
    ready = container["readinessProbe"]
    assert int(delay) >= ready["periodSeconds"] * ready["failureThreshold"]
    variables = large.variables("guard-proxy")
    assert variables.keys() <= {*VARIABLES, "GUARD_PROXY_METRICS_KEY"}
    settings = Settings.load(variables)
    assert settings.api_url == "http://guard"
    assert settings.api_url.removeprefix("http://") in large.of("Service")


def test_the_ingress_leads_to_both_by_hosts_of_their_own(large: Rendered) -> None:
    hosts = {}
    for name, each in large.of("Ingress").items():
        [rule] = each["spec"]["rules"]
        [path] = rule["http"]["paths"]
        assert (path["path"], path["pathType"]) == ("/", "Prefix")
        assert path["backend"]["service"] == {"name": name, "port": {"name": "http"}}
        assert each["spec"]["tls"][0]["hosts"] == [rule["host"]]
        hosts[name] = rule["host"]
    assert hosts == {"guard": "guard.example.com", "guard-proxy": "proxy.example.com"}
    assert large.of("Ingress")["guard"]["spec"]["ingressClassName"] == "nginx"
    notes = large.of("Ingress")["guard-proxy"]["metadata"]["annotations"]
    assert notes["nginx.ingress.kubernetes.io/proxy-body-size"] == "64m"


def test_monitors_name_the_jobs_that_alerts_go_by(large: Rendered) -> None:
    rules = (ROOT / "deploy" / "prometheus" / "guard.rules.yaml").read_text()
    for monitor in large.of("ServiceMonitor").values():
        [endpoint] = monitor["spec"]["endpoints"]
        [relabelled] = endpoint["relabelings"]
        assert f'job="{relabelled["replacement"]}"' in rules
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
        of = {"name": "monitoring", "key": "metrics"}
        assert endpoint["authorization"] == {"credentials": of}
    assert set(large.of("ServiceMonitor")) == {"guard", "guard-proxy"}


def test_the_proxies_may_reach_the_gateway(large: Rendered) -> None:
    [rule] = large.of("NetworkPolicy")["guard"]["spec"]["ingress"]
    [selector] = [each["podSelector"] for each in rule["from"] if "podSelector" in each]
    template = large.of("Deployment")["guard-proxy"]["spec"]["template"]
    assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_agents_reach_guard_alone_and_the_vendors_keys_are_the_proxys() -> None:
    custody = objects({
        "proxy": {"enabled": True, "accountsSecretName": "vendors"},
        "networkPolicy": {"agents": {"app": "agents"}},
    })  # fmt: skip
    found = {(each["kind"], each["metadata"]["name"]): each for each in custody}
    policy = found["NetworkPolicy", "guard-agents"]["spec"]
    assert policy["podSelector"] == {"matchLabels": {"app": "agents"}}
    assert policy["policyTypes"] == ["Egress"]
    to_guard, to_names = policy["egress"]
    for name, peer in zip(("guard", "guard-proxy"), to_guard["to"], strict=True):
        labels = found["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert {each["port"] for each in to_names["ports"]} == {53}
    pods = {
        name: found["Deployment", name]["spec"]["template"]["spec"]
        for name in ("guard", "guard-proxy")
    }
    [container] = pods["guard-proxy"]["containers"]
    [mounted] = [each for each in container["volumeMounts"] if each["name"] == "accounts"]
    assert f"--accounts={mounted['mountPath']}/accounts.toml" in container["args"]
    assert {"name": "accounts", "secret": {"secretName": "vendors", "defaultMode": 0o440}} in (
        pods["guard-proxy"]["volumes"]
    )
    assert "vendors" not in json.dumps(pods["guard"])


def test_it_scales_by_a_metric_that_is_served(large: Rendered) -> None:
    spec = large.of("HorizontalPodAutoscaler")["guard"]["spec"]
    by_sockets = spec["metrics"][0]["pods"]
    name = by_sockets["metric"]["name"]
    assert f"| `{name}` | gauge |" in (ROOT / "docs" / "gateway" / "metrics.md").read_text()
    most = int(large.variables("guard")["GUARD_GATEWAY_CONNECTIONS_MAX"])
    assert int(by_sockets["target"]["averageValue"]) * 1.5 < most * 0.8, (
        "room for a pod's sockets while another starts, within an organisation's share"
    )
    [only] = large.of("HorizontalPodAutoscaler")["guard-proxy"]["spec"]["metrics"]
    assert only["resource"]["name"] == "cpu"


def test_a_change_of_a_setting_replaces_the_pods() -> None:
    def noted(days: int) -> str:
        made = Rendered(objects({"gateway": {"settings": {"retention_days": days}}}))
        template = made.of("Deployment")["guard"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert noted(5) == noted(5) != noted(6)


# -- what the pods run, run here -------------------------------------------------------------------


@contextlib.contextmanager
def running(*words: str, **variables: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a pod's command; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "guard", *words], env=environment(variables),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with killed_at_last(process):
        assert process.stdout is not None
        found = re.search(r"http://[\d.:]+", process.stdout.readline())
        assert found is not None, "it ended"
        yield found[0], process


def answers(container: dict[str, Any], probe: str, url: str) -> bool:
    path = container[probe]["httpGet"]["path"]
    return httpx.get(url + path).status_code == 200


def test_the_pods_commands_serve_and_end(tmp_path: Path) -> None:
    """A gateway on PostgreSQL, and a proxy with the key that it has made."""
    made = Rendered(objects({
        "gateway": {"drain": {"delaySeconds": 1, "timeoutSeconds": 5}},
        "proxy": {"enabled": True},
    }))  # fmt: skip
    gateway, proxy = made.container("guard"), made.container("guard-proxy")
    variables = with_files(made, tmp_path) | {
        "GUARD_GATEWAY_HOST": "127.0.0.1", "GUARD_GATEWAY_PORT": "0",
        "GUARD_GATEWAY_DATABASE": own_database(),
    }  # fmt: skip
    with running("gateway", *gateway["args"], **variables) as (url, serving):
        until(lambda: answers(gateway, "readinessProbe", url))
        assert answers(gateway, "livenessProbe", url)
        with contextlib.closing(AdminClient(url, ADMIN_KEY)) as admin:
            key = admin.create_key_full("proxy", role="proxy", every_organisation=True)["api_key"]
        told = made.variables("guard-proxy") | {"GUARD_API_URL": url, "GUARD_API_KEY": key}
        here = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=8788": "--port=0"}
        words = [here.get(str(each), str(each)) for each in proxy["args"]]
        with running(*proxy["command"][1:], *words, **told) as (address, proxying):
            until(lambda: answers(proxy, "readinessProbe", address))
            assert httpx.post(f"{address}/openai/v1/responses", json={}).status_code == 401
            for process in (proxying, serving):
                process.send_signal(signal.SIGTERM)
            assert proxying.wait(WAIT_S) == 0
        assert serving.wait(WAIT_S) == 0
        assert serving.stdout is not None
        said = serving.stdout.read()
        assert "gda_" not in said, "the first keys were given, so none is printed"
