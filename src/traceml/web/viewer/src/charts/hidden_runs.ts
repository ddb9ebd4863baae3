/** Runs that the reader has hidden: in one chart of a comparison means in all of them. */

import { useEffect, useState } from "preact/hooks";

type Names = ReadonlySet<string>;

let hidden: Names = new Set();
const listeners = new Set<() => void>();

function hideRuns(names: Names): void {
  hidden = names;
  for (const listener of listeners) listener();
}

/** What is hidden of a figure's series: of an overlay the same runs as in all others. */
export function useHidden(isOverlay: boolean): [Names, (names: Names) => void] {
  const [own, setOwn] = useState<Names>(new Set());
  const [shared, setShared] = useState(hidden);
  useEffect(() => {
    if (!isOverlay) return;
    const follow = (): void => setShared(hidden);
    listeners.add(follow);
    follow();
    return () => void listeners.delete(follow);
  }, [isOverlay]);
  return isOverlay ? [shared, hideRuns] : [own, setOwn];
}
