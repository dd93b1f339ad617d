/** Reads something again on demand: never two at once, never more often than its period, never forgetting. */
export class Loader {
  private running = false;
  private again = false;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private startedAt = Number.NEGATIVE_INFINITY;

  constructor(
    private readonly periodMs: number,
    private readonly load: () => Promise<void>,
    private readonly now: () => number = () => performance.now(),
  ) {}

  want(): void {
    if (this.running) {
      this.again = true;
      return;
    }
    if (this.timer !== null) return;
    const wait = this.startedAt + this.periodMs - this.now();
    if (wait > 0) this.timer = setTimeout(() => this.run(), wait);
    else this.run();
  }

  private run(): void {
    this.timer = null;
    this.running = true;
    this.again = false;
    this.startedAt = this.now();
    const done = () => {
      this.running = false;
      if (this.again) this.want();
    };
    this.load().then(done, done);
  }
}
