import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

declare const process: { env: Record<string, string | undefined> };

// The API the development server passes calls on to: the mock, or a real server.
const api = process.env["SWARM_API"] ?? "http://127.0.0.1:4173";

export default defineConfig({
  plugins: [react()],
  build: {
    target: "es2023",
    // Nothing may be inlined as data: the content security policy of the server allows its own files only.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  worker: { format: "es" },
  server: { proxy: { "/api": { target: api, changeOrigin: true } } },
});
