import { type ComponentType, lazy } from "react";

const NAME = "swarm.reloaded";

/** After an upgrade a part may be gone from the server: the page is loaded again, once. */
export function lazyPart<P extends object>(load: () => Promise<{ default: ComponentType<P> }>) {
  return lazy(async () => {
    try {
      const part = await load();
      sessionStorage.removeItem(NAME);
      return part;
    } catch (error) {
      if (sessionStorage.getItem(NAME) === null) {
        sessionStorage.setItem(NAME, "1");
        location.reload();
      }
      throw error;
    }
  });
}
