import "./style.css";
import { mount } from "svelte";
import App from "./App.svelte";
import { live } from "./lib/live.svelte";

const root = document.getElementById("root");
if (root) {
  mount(App, { target: root });
  live.start();
}
