import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  // Addresses are relative, because the page may be mounted under a prefix.
  base: "./",
  plugins: [svelte()],
  publicDir: false,
  build: {
    outDir: "dist",
    // The server serves these files below /dashboard/, and the page itself at /.
    assetsDir: "dashboard",
    // The content security policy allows no inline data except images, so that every file stays a file.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: false,
  },
});
