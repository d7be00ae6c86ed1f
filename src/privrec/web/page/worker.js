/** Keeps the page's files for offline use. `FILES` and `VERSION` are written by privrec. */
const FILES = ["./"];
const VERSION = "";
const PREFIX = `privrec:${new URL(self.registration.scope).pathname}:`;

self.addEventListener("install", (event) => {
  const fresh = FILES.map((file) => new Request(file, { cache: "reload" }));
  event.waitUntil(caches.open(PREFIX + VERSION).then((cache) => cache.addAll(fresh)));
});

self.addEventListener("activate", (event) => {
  event.waitUntil(
    caches
      .keys()
      .then((names) => names.filter((it) => it.startsWith(PREFIX) && it !== PREFIX + VERSION))
      .then((old) => Promise.all(old.map((name) => caches.delete(name))))
      .then(() => self.clients.claim()),
  );
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  event.respondWith(
    caches
      .match(event.request, { cacheName: PREFIX + VERSION, ignoreSearch: true })
      .then((kept) => kept ?? fetch(event.request)),
  );
});
