-- Claim, last part: draw, and write down what was drawn as a lease.

-- As in settle. A plain claim begins with what it takes out of a ring, which is as good.
if some_due or ARGV[9] ~= '' then c('DEL', KEYS[1]) end
if early then c('ZADD', g .. OPENINGS, format('%.0f', now), first_due[1]) end
for _, pass in ipairs(passes) do
  n = min(pass[3], total - taken)
  left, stopped = n, suspect
  repeat
    local any = left > 0 and not stopped and draw_pass(pass)
  until not any or left <= 0 or stopped or budget <= 0
end
write_limits()

local giving, left_behind, apart = 0, {}, nil
for _, q in ipairs(queues) do if #q.out > 2 then giving = giving + 1 end end
for _, q in ipairs(queues) do
  local p, count = q.p, #q.out - 2
  local heads, emptied = {}, {}
  for lane, head in pairs(q.heads) do
    if head then
      heads[#heads + 1] = lane
      heads[#heads + 1] = head
    else
      emptied[#emptied + 1] = lane
    end
  end
  if #heads > 0 then each('HSET', p .. FIRST_PLACES, heads) end
  if #emptied > 0 then
    each('HDEL', p .. FIRST_PLACES, emptied)
    if q.large then each('SREM', p .. LARGE_LANES, emptied) end
  end
  for lane, gaps in pairs(q.gaps) do
    if c('HINCRBY', p .. HOLES, lane, -gaps) <= 0 then c('HDEL', p .. HOLES, lane) end
  end
  forget_singles(q)
  if count > 0 then
    local no = q.held or q.no or c('HINCRBY', p .. COUNTERS, 'l', 1)
    local header = {token, ARGV[4], now, suspect and 1 or 0, '', (giving > 1 or ARGV[7] == '1') and 1 or 0}
    local index, places = had, {}
    for r = 1, #q.runs, 4 do
      local lane, seq, many = q.runs[r], q.runs[r + 1], q.runs[r + 2]
      header[#header + 1] = lane
      header[#header + 1] = seq
      header[#header + 1] = many
      header[#header + 1] = q.runs[r + 3]
      if q.listed[(r + 3) / 4] then
        places[#places + 1] = 0
        places[#places + 1] = place(lane, seq) .. ':' .. no .. ':' .. index .. ':' .. many
      end
      index = index + many
    end
    if #q.moved > 0 then
      for m = 2, #q.moved, 2 do q.moved[m] = no .. ':' .. q.moved[m] end
      each('HSET', p .. MOVED, q.moved)
    end
    each('ZADD', p .. CLAIMED, places)
    local head = cmsgpack.pack(header)
    q.out[2] = head
    if q.held then
      local whole = lease_header(p, no)
      for r = RUNS, #header do whole[#whole + 1] = header[r] end
      c('LSET', p .. LEASE .. no, 0, cmsgpack.pack(whole))
      c('RPUSH', p .. LEASE .. no, unpack(q.out, 3))
    elseif q.moved_large then
      apart = no
      c('LPUSH', p .. LEASE .. no, head)
      if count > q.moved_large then c('RPUSH', p .. LEASE .. no, unpack(q.out, 3 + q.moved_large)) end
    else
      c('RPUSH', p .. LEASE .. no, unpack(q.out, 2))
    end
    c('ZADD', p .. LEASES, now + ARGV[5], no)
    by_then(EXPIRING_QUEUES, now + ARGV[5], p)
    c('HSET', p .. TOKENS, token, no .. (header[6] == 1 and 'm' or '') .. (q.limited and 'l' or ''))
    bump(p, 'r', -count)
    bump(p, 'u', count)
    answer[#answer + 1] = q.out
  end
  -- The next waiting worker gets a hint about the rest, also if this claim was for other jobs. Without jobs there is no hint.
  if c('EXISTS', p .. PRIORITIES) == 0 then
    c('DEL', p .. MARKER)
  else
    wake(p)
    left_behind[#left_behind + 1] = q.number
  end
end
first_due = c('ZRANGE', g .. OPENINGS, 0, 0, 'WITHSCORES')[2]
if first_due then opens = min(opens or math.huge, max(now, tonumber(first_due))) end
answer[1] = {opens and format('%.0f', opens) or '', left_behind, bytes <= 0 and 1 or 0, apart}
return answer
