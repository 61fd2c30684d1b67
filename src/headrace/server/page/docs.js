// Draws openapi.json. Everything from outside goes in as text, never as markup.
"use strict";

const make = (name, attributes, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key === "on") node.addEventListener(value[0], value[1]);
    else if (value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
};

// `name` in a text is shown as code.
const plain = (text) => text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));

const base = new URL(".", document.location.href);
let schemas = {};

const resolve = (schema) => (schema?.$ref ? schemas[schema.$ref.split("/").pop()] ?? {} : schema ?? {});

function kind(schema) {
  if (schema?.$ref) return schema.$ref.split("/").pop();
  if (schema?.anyOf) return schema.anyOf.map(kind).filter((each) => each !== "null").join(" | ");
  if (schema?.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema?.type === "array") return `${kind(schema.items ?? {}) || "any"}[]`;
  return schema?.format ?? (Array.isArray(schema?.type) ? schema.type.join(" | ") : schema?.type) ?? "any";
}

function sample(schema, depth = 0) {
  const shape = resolve(schema);
  if (depth > 4) return null;
  if (shape.default !== undefined && shape.default !== null) return shape.default;
  if (shape.anyOf) return sample(shape.anyOf[0], depth + 1);
  if (shape.enum) return shape.enum[0];
  if (shape.properties) {
    const needed = new Set(shape.required ?? []);
    const names = Object.keys(shape.properties).filter((name) => needed.has(name));
    return Object.fromEntries(names.map((name) => [name, sample(shape.properties[name], depth + 1)]));
  }
  return { array: [], object: {}, integer: 0, number: 0, boolean: false, string: "" }[shape.type] ?? null;
}

function fields(schema) {
  const shape = resolve(schema);
  const needed = new Set(shape.required ?? []);
  const rows = Object.entries(shape.properties ?? {}).map(([name, part]) =>
    make("tr", {}, make("td", {}, make("code", {}, name)),
      make("td", {}, kind(part), needed.has(name) ? "" : make("span", { class: "optional" }, " optional")),
      make("td", {}, ...plain(part.description ?? resolve(part).description ?? ""))));
  return rows.length ? make("table", {}, ...rows) : undefined;
}

function content(part) {
  const [media] = Object.keys(part?.content ?? {});
  return media ? part.content[media].schema : undefined;
}

function tryIt(path, method, operation) {
  const inputs = (operation.parameters ?? []).map((each) => [each, make("input", { placeholder: each.required ? "needed" : "" })]);
  const body = content(operation.requestBody);
  const text = body && make("textarea", { spellcheck: "false" });
  if (text) text.value = JSON.stringify(sample(body), null, 2);
  const out = make("pre", { hidden: "" });
  const send = async () => {
    let address = path;
    const query = new URLSearchParams();
    const headers = {};
    const token = document.getElementById("token").value;
    if (token) headers.Authorization = `Bearer ${token}`;
    for (const [each, input] of inputs) {
      if (!input.value) continue;
      if (each.in === "path") address = address.replace(`{${each.name}}`, encodeURIComponent(input.value));
      else if (each.in === "query") query.append(each.name, input.value);
      else headers[each.name] = input.value;
    }
    if (text) headers["Content-Type"] = "application/json";
    out.hidden = false;
    out.textContent = "…";
    try {
      const url = new URL(address.slice(1) + (query.size ? `?${query}` : ""), base);
      const answer = await fetch(url, { method: method.toUpperCase(), headers, body: text ? text.value : undefined });
      const received = await answer.text();
      let shown = received;
      try { shown = JSON.stringify(JSON.parse(received), null, 2); } catch { /* it is not JSON */ }
      out.textContent = `${answer.status} ${answer.statusText}\n\n${shown}`;
    } catch (error) {
      out.textContent = String(error);
    }
  };
  const rows = inputs.map(([each, input]) =>
    make("tr", {}, make("td", {}, make("code", {}, each.name)), make("td", {}, input), make("td", {}, ...plain(each.description ?? ""))));
  return [rows.length ? make("table", {}, ...rows) : undefined, text, make("button", { type: "button", on: ["click", send] }, "Send"), out];
}

function call(path, method, operation) {
  const answers = Object.entries(operation.responses).map(([status, part]) => {
    const schema = content(part);
    return make("tr", {}, make("td", {}, status), make("td", {}, Number(status) < 400 && schema ? kind(schema) : ""),
      make("td", {}, ...plain(part.description)));
  });
  const good = Object.entries(operation.responses).find(([status, part]) => Number(status) < 300 && content(part));
  const body = content(operation.requestBody);
  const node = make("details", {},
    make("summary", {}, make("span", { class: `method ${method}` }, method.toUpperCase()), make("code", {}, path),
      make("span", { class: "does" }, ...plain(operation.summary)), make("span", { class: "scope" }, operation["x-scope"] ?? "open")));
  node.addEventListener("toggle", () => {
    if (node.querySelector(".inside")) return;
    node.append(make("div", { class: "inside" },
      body && make("h3", {}, "Body"), body && fields(body),
      good && make("h3", {}, "Answer"), good && fields(content(good[1])),
      make("h3", {}, "Answers"), make("table", {}, ...answers),
      make("h3", {}, "Try it"), ...tryIt(path, method, operation)));
  });
  node.dataset.text = `${method} ${path} ${operation.summary}`.toLowerCase();
  return node;
}

async function draw() {
  const main = document.getElementById("calls");
  const api = await (await fetch(new URL("openapi.json", base))).json();
  schemas = api.components.schemas;
  document.getElementById("about").textContent = `${api.info.description.replaceAll("`", "")} Version ${api.info.version}.`;
  const groups = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!groups.has(tag)) groups.set(tag, make("section", {}, make("h2", {}, tag)));
      groups.get(tag).append(call(path, method, operation));
    }
  }
  main.replaceChildren(...groups.values());
  document.getElementById("find").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const section of groups.values()) {
      let any = false;
      for (const node of section.querySelectorAll("details")) {
        node.hidden = !node.dataset.text.includes(wanted);
        any ||= !node.hidden;
      }
      section.hidden = !any;
    }
  });
}

draw();
