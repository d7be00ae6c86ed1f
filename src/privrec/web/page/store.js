/** What this browser keeps for the page: the person's state, and the page's files. */

const PLACE = new URL(".", location.href).pathname;
const NAME = `privrec:${PLACE}`;

/**
 * Return the result of a request to the database.
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function opened() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore("kept");
  return done(request);
}

/**
 * Return what was kept under a name, or undefined.
 * @param {string} key
 * @returns {Promise<any>}
 */
export async function read(key) {
  const base = await opened();
  try {
    return await done(base.transaction("kept").objectStore("kept").get(key));
  } finally {
    base.close();
  }
}

/**
 * Keep a value under a name.
 * @param {string} key
 * @param {string} value
 */
export async function write(key, value) {
  const base = await opened();
  try {
    await done(base.transaction("kept", "readwrite").objectStore("kept").put(value, key));
  } finally {
    base.close();
  }
}

/** Delete the person's state, the files for offline use, and the worker that serves them. */
export async function deleteAll() {
  await done(indexedDB.deleteDatabase(NAME));
  const workers = (await navigator.serviceWorker?.getRegistrations()) ?? [];
  for (const worker of workers) {
    if (new URL(worker.scope).pathname === PLACE) await worker.unregister();
  }
  if (!("caches" in globalThis)) return;
  for (const name of await caches.keys()) {
    if (name.startsWith(`${NAME}:`)) await caches.delete(name);
  }
}
