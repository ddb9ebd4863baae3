/** What pages ask the server for themselves, and whether it would answer anew. */

import { useEffect, useState } from "preact/hooks";
import { fetched } from "./live";

export interface Answer<T> {
  data: T | null;
  error: string | null;
  isLoading: boolean;
}

/**
 * What the server says, asked unless it is `null`; until it has answered the last answer stays.
 * With another `version` of the runs the same is asked again.
 */
export function useAnswer<T>(address: string | null, version = ""): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T>>({ data: null, error: null, isLoading: true });
  useEffect(() => {
    if (address === null) return;
    const asking = new AbortController();
    setAnswer((before) => ({ ...before, isLoading: true }));
    fetched<T>(address, asking.signal)
      .then((data) => setAnswer({ data, error: null, isLoading: false }))
      .catch((error: Error) => {
        if (asking.signal.aborted) return;
        setAnswer((before) => ({ ...before, error: error.message, isLoading: false }));
      });
    return () => asking.abort();
  }, [address, version]);
  return answer;
}

const LOOK_AGAIN_MS = 10_000;

/** A word that is another one once a run has come, changed or gone; asked for while one looks. */
export function useRunsVersion(base: string): string {
  const [version, setVersion] = useState("");
  useEffect(() => {
    const asking = new AbortController();
    let first: string | null = null;
    const look = async (): Promise<void> => {
      if (document.hidden && first !== null) return;
      try {
        const address = `${base}/api/version`;
        const found = (await fetched<{ version: string }>(address, asking.signal)).version;
        if (first === null) first = found; // what is shown is at least as new
        else if (found !== first) setVersion(found);
      } catch {
        // Nobody answers, or the page is left: what is shown stays, and it is tried again.
      }
    };
    void look();
    const timer = window.setInterval(() => void look(), LOOK_AGAIN_MS);
    return () => {
      window.clearInterval(timer);
      asking.abort();
    };
  }, [base]);
  return version;
}
