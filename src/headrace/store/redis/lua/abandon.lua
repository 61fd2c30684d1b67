-- Expire the leases of a worker that is known to be dead.
-- ARGV: 1 clock, 2 worker, 3 cause, 4… numbers of leases to look at.  Answer: the tokens of those that are its.
local p, now, theirs = KEYS[1], clock(ARGV[1]), {}
c('DEL', p)  -- as in settle
for a = 4, #ARGV do
  local no = ARGV[a]
  local head = c('ZSCORE', p .. LEASES, no) and c('LINDEX', p .. LEASE .. no, 0)
  if head then
    local header = cmsgpack.unpack(head)
    if header[2] == ARGV[2] then
      header[5] = ARGV[3]
      c('LSET', p .. LEASE .. no, 0, cmsgpack.pack(header))
      c('ZADD', p .. LEASES, now, no)
      theirs[#theirs + 1] = header[1]
    end
  end
end
if #theirs > 0 then
  by_then(EXPIRING_QUEUES, now, p)
  wake_janitor()
end
return theirs
